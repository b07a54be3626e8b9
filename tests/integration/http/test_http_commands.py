"""Devices that fetch their commands over HTTP, served by push through a real MQTT broker."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from bridge.inspect.check import check_rights
from bridge.protocols.handler import Address
from bridge.settings import PulsarSettings, Settings
from bridge.settings.http import HttpSettings
from pulsebridge.local.ports import free_ports
from pulsebridge.local.stack import LocalStack
from tests.support.fetching import (
    HttpDevice,
    Statuses,
    fetch_settings,
    fetched_in_order,
    ingest_of_commands,
    listens,
)
from tests.support.ingest import running_ingest
from tests.support.kill_points import FETCH_KILL_POINTS
from tests.support.push import all_acknowledged, command, provision, push_in_thread, receipts, write_commands
from tests.support.stack import new_stack
from tests.support.waiting import patient, poll_for

pytestmark = pytest.mark.stack

KILLS = [
    # With push.confirm: broker nothing is between the second point and the third.
    pytest.param(confirm, point, marks=() if point == FETCH_KILL_POINTS[-1] else pytest.mark.thorough)
    for confirm, points in (("device", FETCH_KILL_POINTS), ("broker", FETCH_KILL_POINTS[::2]))
    for point in points
]


@contextmanager
def serving(settings: Settings) -> Iterator[Address]:
    with running_ingest(settings) as service:
        yield service.running.listeners["http"][0]


def parked(metrics: Any) -> int:
    return int(metrics.gauges["parked"].labels("0")._value.get())


def url(address: Address, device: str = "d") -> str:
    return f"http://{address.host}:{address.port}/devices/{device}/commands"


@contextmanager
def clients() -> Iterator[Any]:
    """Yield a function that sends a GET at once and returns the future answer."""
    with ThreadPoolExecutor(8) as pool, httpx.Client(timeout=180, trust_env=False) as client:

        def get(target: str, **headers: str) -> Future[httpx.Response]:
            return pool.submit(client.get, target, headers=headers)

        yield get


@pytest.mark.parametrize("confirm", ["device", "broker"])
def test_commands_arrive_in_order_with_a_receipt_and_wait_in_pulsar_while_no_device_fetches(
    broker: LocalStack, namespaces: PulsarSettings, confirm: str
) -> None:
    settings = fetch_settings(broker, namespaces, confirm=confirm)
    provision(settings)
    names = ("d0", "d1", "d2")
    first, later = ([command(settings, f"d{n % 3}", n) for n in range(at, at + 30)] for at in (0, 30))
    every: list[HttpDevice] = []
    with push_in_thread(settings) as metrics, serving(settings) as address, Statuses(settings) as statuses:
        for commands in (first, later):
            write_commands(settings, commands)
            wanted = {one.command_id for one in commands}
            with ExitStack() as stack:
                devices = [
                    stack.enter_context(HttpDevice(address, name, by="after" if name == "d2" else "post"))
                    for name in names
                ]
                every += devices
                poll_for(lambda: {i for one in devices for i in one.ids} >= wanted, 60, "the commands")  # noqa: B023
                all_acknowledged(settings)
            statuses.becomes("offline", *names)
        poll_for(lambda: len(receipts(settings)) == 60, 30, "a receipt of each")
        assert parked(metrics) == 0
    assert fetched_in_order(every, [*first, *later]) <= 6  # one whose confirmation the end of the device cut
    found = receipts(settings)
    assert {r.state for rows in found.values() for r in rows} == {"answered" if confirm == "device" else "delivered"}
    if confirm == "device":
        assert b"done 3" in {one.answer for one in found["d0-3"]}


@pytest.mark.parametrize("confirm", ["device", "broker"])
def test_h26_what_a_device_did_not_confirm_comes_again_marked(
    broker: LocalStack, namespaces: PulsarSettings, confirm: str
) -> None:
    settings = fetch_settings(broker, namespaces, confirm=confirm)
    provision(settings)
    commands = [command(settings, "d", n) for n in range(20)]
    with push_in_thread(settings) as metrics, serving(settings) as address, Statuses(settings) as statuses:
        with HttpDevice(address, "d", by="none", most=1) as gone:
            statuses.becomes("online", "d")
            write_commands(settings, commands)
            poll_for(lambda: gone.got, 30, "the first command")
        statuses.becomes("offline", "d")
        poll_for(lambda: parked(metrics) > 0, 30, "the device to be parked")
        with HttpDevice(address, "d", by="after") as back:
            poll_for(lambda: set(back.ids) >= {c.command_id for c in commands}, 60, "all commands")
            all_acknowledged(settings)
    assert gone.got == [("d-0", False)]
    assert back.got[0] == ("d-0", True)
    fetched_in_order([gone, back], commands)


def test_the_newer_of_two_requests_gets_the_command_and_the_older_ends_with_409(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = fetch_settings(stack, namespaces)
    provision(settings)
    with (
        push_in_thread(settings),
        serving(settings) as here,
        serving(settings) as there,
        Statuses(settings) as statuses,
        clients() as get,
    ):
        for number, (older, newer) in enumerate(((here, here), (here, there), (there, here))):
            name = f"d{number}"
            first = get(f"{url(older, name)}?wait=60")
            statuses.becomes("online", name)
            second = get(f"{url(newer, name)}?wait=60")
            assert first.result().status_code == 409
            write_commands(settings, [command(settings, name, number)])
            answer = second.result()
            assert (answer.status_code, answer.headers["command-id"]) == (200, f"{name}-{number}")
            position = answer.headers["command-position"]
            # At another process: it takes the session over, and the broker sends the command again.
            done = httpx.post(f"{url(older, name)}/{position}", content=b"done", timeout=60, trust_env=False)
            assert done.status_code == 200, done.text
        poll_for(lambda: len(receipts(settings)) == 3, 30, "a receipt of each")
    assert {r.answer for rows in receipts(settings).values() for r in rows} == {b"done"}


def test_h36_a_failure_is_sent_again_and_a_forged_position_settles_nothing(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = fetch_settings(stack, namespaces, retry={"max_wait": "200ms"})
    provision(settings)
    with push_in_thread(settings), serving(settings) as address, clients() as get:
        write_commands(settings, [command(settings, "d", 1)])
        first = get(f"{url(address)}?wait=30").result()
        position = first.headers["command-position"]
        failed = httpx.post(f"{url(address)}/{position}?failed=true", content=b"no", timeout=60, trust_env=False)
        assert failed.status_code == 200
        again = get(f"{url(address)}?wait=30").result()
        assert (again.headers["command-position"], again.headers["command-repeat"]) == (position, "true")
        other = position.rsplit(".", 1)[0] + "." + "A" * 16
        forged = httpx.post(f"{url(address)}/{other}", content=b"forged", timeout=60, trust_env=False)
        assert forged.status_code == 200  # push alone can tell, and ignores it
        assert httpx.post(f"{url(address)}/{position}", content=b"yes", timeout=60, trust_env=False).status_code == 200
        poll_for(lambda: receipts(settings).get("d-1"), 30, "its receipt")
    (receipt,) = receipts(settings)["d-1"]
    assert (receipt.state, receipt.answer) == ("answered", b"yes")
    assert receipt.attempts >= 2


def test_h39_requests_are_bounded_and_allowed_by_their_credential(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    base = fetch_settings(stack, namespaces)
    commands = base.http.commands.model_copy(update={"devices": 2})
    tokens = f"one {base.push.client_id}/one/#\nall #"
    http = HttpSettings(port=0, tokens=tokens, commands=commands, limits={"body_size": "1KiB"})  # type: ignore[arg-type]
    settings = base.model_copy(update={"http": http})
    provision(settings)
    with push_in_thread(settings), serving(settings) as address, Statuses(settings) as statuses, clients() as get:
        ours, every = {"Authorization": "Bearer one"}, {"Authorization": "Bearer all"}
        assert get(url(address, "one")).result().status_code == 401
        assert get(url(address, "two"), **ours).result().status_code == 403
        with HttpDevice(address, "one", token="one") as one, HttpDevice(address, "two", token="all") as two:
            poll_for(lambda: one.statuses or two.statuses or len(statuses.seen) >= 4, 30, "both to wait")
            full = get(url(address, "three"), **every).result()
            assert (full.status_code, full.headers["retry-after"]) == (503, "1")
            write_commands(settings, [command(settings, "one", 1)])
            poll_for(lambda: one.got, 30, "the command")
        large = httpx.post(
            f"{url(address, 'one')}/0.0.1.1.-1.{'A' * 16}", content=bytes(2000), headers=ours, trust_env=False
        )
        assert large.status_code == 413
    assert {name for name, _ in statuses.seen} == {"one", "two"}


def test_a_client_that_leaves_or_does_not_read_costs_nothing_and_gets_its_command_again(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = fetch_settings(stack, namespaces, {"limits": {"read_timeout": "1s"}})
    provision(settings)
    with push_in_thread(settings), serving(settings) as address, Statuses(settings) as statuses:
        request = b"GET /devices/%s/commands?wait=60 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with socket.create_connection(address, timeout=30) as leaves:
            leaves.sendall(request % b"d")
            statuses.becomes("online", "d")
        statuses.becomes("offline", "d")  # long before its time is over
        with socket.create_connection(address, timeout=30) as deaf:
            deaf.sendall(request % b"d")
            statuses.becomes("online", "d")
            write_commands(settings, [command(settings, "d", 1)])
            statuses.becomes("offline", "d")
        with HttpDevice(address, "d") as back:
            poll_for(lambda: back.got, 60, "the command")
        assert back.got[0] == ("d-1", True)


def test_the_rights_that_devices_need_are_checked(stack: LocalStack, namespaces: PulsarSettings) -> None:
    settings = fetch_settings(stack, namespaces)
    (found,) = (one for one in check_rights(settings, "ingest") if one.name == "MQTT rights for HTTP")
    assert found.ok
    assert found.detail == f"may subscribe to {settings.push.client_id}/+/commands"


@pytest.mark.chaos
@pytest.mark.parametrize(("confirm", "point"), KILLS)
def test_h25_ingest_killed_at_each_point_loses_no_command_and_repeats_are_marked(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path, confirm: str, point: str
) -> None:
    settings = fetch_settings(stack, namespaces, confirm=confirm)
    provision(settings)
    (port,) = free_ports(1)
    address = Address("127.0.0.1", port)
    commands = [command(settings, f"d{n % 3}", n) for n in range(60)]
    with push_in_thread(settings), Statuses(settings) as statuses, ExitStack() as stop:
        devices = [stop.enter_context(HttpDevice(address, f"d{n}", by="after" if n else "post")) for n in range(3)]
        for kill in range(3):
            with ingest_of_commands(settings, port, tmp_path, f"{point}:7") as (process, log):
                if not kill:
                    # Artemis accepts, and drops, commands for a device that has had no session there.
                    statuses.becomes("online", "d0", "d1", "d2")
                    write_commands(settings, commands)
                poll_for(lambda process=process: process.poll() is not None, 60, "the kill")  # type: ignore[misc]
                assert process.returncode == -9, log.read_text()
        with ingest_of_commands(settings, port, tmp_path) as (process, log):
            listens(address)
            wanted = {one.command_id for one in commands}
            poll_for(lambda: {i for one in devices for i in one.ids} >= wanted, 90, "every command")
            all_acknowledged(settings)
            assert process.poll() is None, log.read_text()
    repeats = fetched_in_order(devices, commands)
    assert confirm == "broker" or repeats <= 3 * 3 * 2
    assert set(receipts(settings)) == {one.command_id for one in commands}


@pytest.mark.thorough
@pytest.mark.chaos
@pytest.mark.parametrize("confirm", ["device", "broker"])
def test_the_mqtt_broker_may_be_killed(stack: LocalStack, namespaces: PulsarSettings, confirm: str) -> None:
    with new_stack(mqtt_server="artemis", pulsar_url=stack.pulsar_url, admin_url=stack.admin_url) as own:
        settings = fetch_settings(own, namespaces, confirm=confirm)
        provision(settings)
        commands = [command(settings, f"d{n % 3}", n) for n in range(60)]
        with push_in_thread(settings), serving(settings) as address, ExitStack() as stop:
            devices = [stop.enter_context(HttpDevice(address, f"d{n}")) for n in range(3)]
            for at in (0, 30):
                write_commands(settings, commands[at : at + 30])
                poll_for(lambda at=at: sum(map(len, (one.ids for one in devices))) > at + 5, 60, "some commands")  # type: ignore[misc]
                own.kill("mqtt")
                own.restart("mqtt")
            wanted = {one.command_id for one in commands}
            poll_for(lambda: {i for one in devices for i in one.ids} >= wanted, 90, "every command")
            all_acknowledged(settings)
        fetched_in_order(devices, commands)
        assert set(receipts(settings)) == {one.command_id for one in commands}


def test_the_curl_example_of_the_readme_fetches_and_confirms(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    text = (Path(__file__).resolve().parents[3] / "docs/devices/http.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```sh\n(BASE=.*?)^```$", text, re.M | re.S)
    settings = fetch_settings(stack, namespaces)
    provision(settings)
    with push_in_thread(settings), serving(settings) as address:
        write_commands(settings, [command(settings, "press-7", 1)])
        script = example.replace("127.0.0.1:8090", f"{address.host}:{address.port}")
        done = subprocess.run(
            ["sh", "-ec", script], cwd=tmp_path, capture_output=True, timeout=patient(60), check=False
        )
        assert done.stdout == b'{"message":"OK"}', done
        assert (tmp_path / "command").read_bytes() == b"1"
        poll_for(lambda: receipts(settings).get("press-7-1"), 30, "its receipt")
    assert receipts(settings)["press-7-1"][0].answer == b'{"done": true}'
