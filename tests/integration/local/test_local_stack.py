"""The local stack on the real servers: where they listen, what outlives a kill, what refuses to start."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from bridge.errors import TerminalError, TransientError
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import MessageId, PulsarClient, Reader
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.downloads.preflight import find_java
from pulsebridge.local.mqtt_servers import artemis_command, artemis_files
from pulsebridge.local.ports import free_ports
from pulsebridge.local.processes import Server
from pulsebridge.local.readiness import mqtt_round_trip, pulsar_healthy, pulsar_round_trip
from pulsebridge.local.sizes import sizes_for
from pulsebridge.local.stack import LocalStack
from pulsebridge.local.state import read_state
from tests.support import mqtt_packets as mqtt
from tests.support.raw_mqtt import RawMqtt
from tests.support.secured import mosquitto
from tests.support.stack import new_stack, provisioned
from tests.support.waiting import patient, poll_for

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]


@pytest.fixture
def mqtt_only(stack: LocalStack) -> Iterator[LocalStack]:
    """A stack of its own for the MQTT broker alone, beside the session's Pulsar."""
    with new_stack(pulsar_url=stack.pulsar_url, admin_url=stack.admin_url) as running:
        yield running


def test_a_message_goes_through_both_servers(stack: LocalStack) -> None:
    mqtt_round_trip(stack.mqtt_host, stack.mqtt_port, timeout_s=30)
    assert pulsar_healthy(stack.admin_url, timeout_s=30)
    pulsar_round_trip(stack.pulsar_url, stack.admin_url)


def test_every_listening_port_is_on_loopback(stack: LocalStack) -> None:
    for name, pid in stack.pids.items():
        listening = [c.laddr for c in psutil.Process(pid).net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        assert listening, name
        assert {a.ip.removeprefix("::ffff:") for a in listening} == {"127.0.0.1"}, (name, listening)


def test_namespaces_are_fresh_and_provisioned(stack: LocalStack, namespaces: PulsarSettings) -> None:
    with PulsarAdmin(namespaces) as admin:
        assert admin.topics(f"public/{namespaces.namespace}") == []
        retention = admin.request("GET", f"/namespaces/public/{namespaces.namespace}/retention")
    assert retention["retentionTimeInMinutes"] == (namespaces.retention or 0) / 60


@pytest.mark.long
def test_topics_that_devices_invent_do_not_end_the_mqtt_broker(stack: LocalStack) -> None:
    """20,000 of 12 KB each do not fit its heap. What waits for who is away, and what is retained, is there all the same."""
    topics = 20_000
    servers = {"pulsar_url": stack.pulsar_url, "admin_url": stack.admin_url, "mqtt_heap": "192MiB"}
    with new_stack(**servers) as running, ExitStack() as closing:

        def client(client_id: str, *, clean: bool) -> RawMqtt:
            return closing.enter_context(
                RawMqtt(running.mqtt_host, running.mqtt_port, client_id, clean=clean, timeout=patient(60))
            )

        device, ingest = client("device", clean=True), client("ingest", clean=True)
        ingest.subscribe("devices/#")
        with client("away", clean=False) as away:
            away.subscribe("devices/+/kept")
        device.publish("devices/retained", b"retained", 1, retain=True)
        assert ingest.receive() == b"retained"
        begun = time.monotonic()
        for n in range(topics):
            device.publish(f"devices/{n}" + "/kept" * (n < 100), b"%d" % n, n + 1)
            assert ingest.receive() == b"%d" % n
            time.sleep(max(0.0, begun + n / 300 - time.monotonic()))
        back = client("away", clean=False)
        assert back.session_present
        assert [back.receive() for _ in range(100)] == [b"%d" % n for n in range(100)]
        late = client("late", clean=True)
        assert (late.subscribe_to_retained("devices/+") or [late.receive()])[0].endswith(b"retained")


def test_devices_that_connect_and_subscribe_all_at_once_do_not_stop_the_mqtt_broker(
    stack: LocalStack,
) -> None:
    """The broker stores each session before it answers: with too few threads they all wait for one that is not there."""
    root = f"storm-{os.getpid()}-{time.monotonic_ns()}"
    clients = 200
    with ExitStack() as closing:
        sockets = []
        for _ in range(clients):
            opened = socket.create_connection((stack.mqtt_host, stack.mqtt_port), timeout=60)
            sockets.append(closing.enter_context(opened))
        for kept in (True, False):  # then the sessions are ended, all at once
            for n, one in enumerate(sockets):
                hello = mqtt.connect(f"{root}-{n}", "3.1.1", clean=not kept, keep_alive=60)
                one.sendall(hello + (mqtt.subscribe("3.1.1", 1, f"{root}/{n}") if kept else b""))
            for one in sockets:
                received, kinds = bytearray(), set()
                while (mqtt.SUBACK if kept else mqtt.CONNACK) not in kinds:
                    data = one.recv(100)
                    assert data, "the broker closed a connection"
                    received += data
                    kinds |= {first for first, _ in mqtt.split(received)}
            if kept:
                sockets = [
                    closing.enter_context(socket.create_connection((stack.mqtt_host, stack.mqtt_port), timeout=60))
                    for _ in range(clients)
                ]


@pytest.mark.chaos
def test_a_killed_mqtt_broker_comes_back_with_its_sessions_and_all_it_acknowledged(
    mqtt_only: LocalStack,
) -> None:
    host, port = mqtt_only.mqtt_host, mqtt_only.mqtt_port
    with RawMqtt(host, port, "keeper", clean=False) as keeper:
        keeper.subscribe("kept/#")
    sent = [b"%04d" % n for n in range(300)]
    with RawMqtt(host, port, "sender", clean=True) as sender:
        for n, payload in enumerate(sent):
            sender.publish(f"kept/{n % 7}", payload, n + 1)
        before = mqtt_only.pids["mqtt"]
        mqtt_only.kill("mqtt")
    assert "mqtt" not in mqtt_only.pids
    mqtt_only.restart("mqtt")
    assert mqtt_only.mqtt_port == port
    assert mqtt_only.pids["mqtt"] != before
    with RawMqtt(host, port, "keeper", clean=False) as keeper:
        assert keeper.session_present
        assert [keeper.receive() for _ in sent] == sent


def test_a_given_broker_may_require_a_login(stack: LocalStack, tmp_path: Path) -> None:
    given = {"pulsar_url": stack.pulsar_url, "admin_url": stack.admin_url}
    with mosquitto(tmp_path, users=["bridge"]) as (port, server):
        with new_stack(mqtt_url=f"mqtt://127.0.0.1:{port}", **given) as own:
            assert (own.mqtt_port, own.pids) == (port, {})
        server.stop()
        with pytest.raises(TransientError, match=rf"127\.0\.0\.1:{port} cannot be reached.*local\.mqtt_url"):
            new_stack(mqtt_url=f"mqtt://127.0.0.1:{port}", **given).start()


@pytest.mark.chaos
def test_a_killed_pulsar_comes_back_with_all_it_acknowledged(stack: LocalStack) -> None:
    with new_stack(mqtt_url=stack.mqtt_url) as own:
        settings = provisioned(own)
        topic = settings.readings_topic("kept")
        sent = [b"%04d" % n for n in range(300)]
        with PulsarAdmin(settings) as admin:
            admin.make(topic, 0)
        with PulsarClient(settings) as client:
            producer = client.producer(topic)
            for payload in sent[:-1]:
                producer.send_async(payload, None)
            producer.send(sent[-1])
        own.kill("pulsar")
        own.restart("pulsar")
        with PulsarClient(settings) as client:
            reader = poll_for(lambda: recovered(client, topic), 120, f"{topic} to be open again")
            assert [reader.read_next(30_000).data() for _ in sent] == sent


def recovered(client: PulsarClient, topic: str) -> Reader | None:
    """Return a reader once Pulsar has recovered the topic's ledgers; on a busy machine that takes its time."""
    try:
        return client.reader(topic, MessageId.earliest)
    except TransientError:
        return None


_OWNER = """
import os, sys, time
from pulsebridge.local.stack import LocalStack
from pulsebridge.local.state import read_state
from bridge.settings.local import LocalSettings
stack = LocalStack(LocalSettings.model_validate_json(sys.argv[1]))
stack.start()
if os.fork() == 0:
    time.sleep(600)  # a child that keeps the guardian's pipe open
print(stack.pids["mqtt"], stack.servers["mqtt"].created, flush=True)
time.sleep(600)
"""


@pytest.mark.chaos
def test_a_killed_owner_leaves_no_server_behind(stack: LocalStack, tmp_path: Path) -> None:
    settings = new_stack(pulsar_url=stack.pulsar_url, admin_url=stack.admin_url, data_dir=tmp_path).settings
    owner = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", _OWNER, settings.model_dump_json()],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    pid, created = owner.stdout.readline().split()
    owner.stdout.close()
    server = psutil.Process(int(pid))
    assert server.create_time() == float(created)
    orphans = [*psutil.Process(owner.pid).children(recursive=True), server]
    owner.kill()
    owner.wait()
    for process in orphans:
        if process.cmdline() and "time.sleep(600)" in " ".join(process.cmdline()):
            process.kill()  # the forked child, which is ours to end
    gone, alive = psutil.wait_procs(orphans, timeout=patient(30))
    assert not alive
    assert gone


def test_a_killed_guardian_takes_its_server_along(mqtt_only: LocalStack) -> None:
    server = psutil.Process(mqtt_only.pids["mqtt"])
    if sys.platform == "linux":
        os.kill(server.ppid(), signal.SIGKILL)
        assert not psutil.wait_procs([server], timeout=patient(30))[1]


# --- what refuses to start, in one line with the remedy ---------------------------------------------------------


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(TerminalError, match=rf"another process uses port {port} \(--mqtt-port\)") as caught:
            new_stack(mqtt_port=port).start()
    assert caught.value.remedy


def test_an_empty_cache_offline_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(TerminalError, match=r"Apache Pulsar 4\.0\.8, Apache Artemis .* not in the cache") as caught:
        new_stack(cache_dir=tmp_path / "cache", offline=True).start()
    assert "--offline" in (caught.value.remedy or "")


def test_a_server_that_cannot_start_shows_the_end_of_its_log(stack: LocalStack, tmp_path: Path) -> None:
    journal = tmp_path / "mqtt/data/journal"
    journal.parent.mkdir(parents=True)
    journal.write_text("not a folder", encoding="utf-8")
    urls = {"pulsar_url": stack.pulsar_url, "admin_url": stack.admin_url}
    for seconds in (12.0, 60.0, 200.0):  # on a busy machine it takes longer until the server says why
        broken = new_stack(**urls, data_dir=tmp_path, start_timeout=f"{seconds}s")
        with pytest.raises(TransientError, match="its log ends:") as caught:
            broken.start()
        assert broken.pids == {}
        if "Exception" in str(caught.value):
            break
    assert "Exception" in str(caught.value).partition("its log ends:")[2]


def test_h32_a_disk_above_the_limit_is_refused_before_the_start(tmp_path: Path) -> None:
    full = new_stack(data_dir=tmp_path, max_disk_usage=0.001)
    with pytest.raises(TerminalError, match="the disk is too full") as caught:
        full.start()
    assert "free some space" in (caught.value.remedy or "")
    assert full.pids == {}


@pytest.mark.thorough
def test_h32_artemis_above_its_limit_takes_connect_and_drops_publish(stack: LocalStack, tmp_path: Path) -> None:
    # The hazard itself, which the check before the start keeps away: the same broker with its limit at 1 %.
    java, _ = find_java()
    assert java is not None
    (port,) = free_ports(1)
    sizes = sizes_for(0)
    for part in ("etc", "data", "tmp"):
        (tmp_path / part).mkdir()
    for name, text in artemis_files(port=port, instance=tmp_path, sizes=sizes, fsync=False, max_disk_usage=1).items():
        (tmp_path / "etc" / name).write_text(text, encoding="utf-8")
    home = stack.homes["mqtt"]
    command = artemis_command(java=java.home, home=home, instance=tmp_path, sizes=sizes, quick=True)
    server = Server("mqtt", command, log=tmp_path / "log", cwd=tmp_path, environment=dict(os.environ), grace_s=3)

    def drops() -> bool:
        try:
            with RawMqtt("127.0.0.1", port, "device", clean=True) as device:
                try:
                    device.publish("t", b"x", 1)
                except ConnectionError:
                    return True
        except (ConnectionError, TimeoutError):
            return False  # not listening yet
        return False  # the disk is looked at every five seconds

    try:
        poll_for(drops, 60, "a PUBLISH that drops its connection")
        with pytest.raises(TransientError, match="MQTT broker at"):
            mqtt_round_trip("127.0.0.1", port, timeout_s=10)
    finally:
        server.kill()


# --- the commands -----------------------------------------------------------------------------------------------


def _pulsebridge(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from pulsebridge.cli.app import main; main()", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(200),
    )


@pytest.mark.thorough
def test_up_leaves_servers_running_and_down_ends_them(stack: LocalStack, tmp_path: Path) -> None:
    cache = new_stack().settings.cache_dir
    common = ["--data-dir", str(tmp_path / "data"), *(["--set", f"local.cache_dir={cache}"] if cache else [])]
    given = ["--pulsar", stack.pulsar_url, "--admin", stack.admin_url]
    assert _pulsebridge("status", *common).returncode == 1
    started = _pulsebridge("up", *common, *given, "--json")
    assert started.returncode == 0, started.stderr
    state = json.loads(started.stdout)
    try:
        host, port = state["mqtt_url"].removeprefix("mqtt://").split(":")
        mqtt_round_trip(host, int(port), timeout_s=30)
        assert list(state["servers"]) == ["mqtt"]
        assert state["until"] == 0  # no time was asked for
        again = _pulsebridge("up", *common, *given)
        assert (again.returncode, again.stdout.splitlines()[0]) == (0, "Already up.")
        shown = json.loads(_pulsebridge("status", *common, "--json").stdout)
        assert shown["up"] is True
        assert shown["servers"]["mqtt"]["pid"] == state["servers"]["mqtt"]["pid"]
    finally:
        assert _pulsebridge("down", *common).returncode == 0
    assert not psutil.pid_exists(state["servers"]["mqtt"]["pid"])
    assert not psutil.pid_exists(state["supervisor"]["pid"])
    assert "Nothing is running" in _pulsebridge("down", *common).stdout


@pytest.mark.thorough
def test_up_for_a_time_ends_by_itself(stack: LocalStack, tmp_path: Path) -> None:
    cache = new_stack().settings.cache_dir
    common = ["--data-dir", str(tmp_path / "data"), *(["--set", f"local.cache_dir={cache}"] if cache else [])]
    given = ["--pulsar", stack.pulsar_url, "--admin", stack.admin_url]
    started = _pulsebridge("up", *common, *given, "--for", "3s", "--json")
    assert started.returncode == 0, started.stderr
    state = json.loads(started.stdout)
    ending = [psutil.Process(one["pid"]) for one in (*state["servers"].values(), state["supervisor"])
              if psutil.pid_exists(one["pid"])]  # fmt: skip
    try:
        assert not psutil.wait_procs(ending, timeout=patient(60))[1]
    finally:
        _pulsebridge("down", *common)


@pytest.mark.thorough
@pytest.mark.chaos
def test_a_killed_supervisor_leaves_no_server_behind(stack: LocalStack, tmp_path: Path) -> None:
    cache = new_stack().settings.cache_dir
    common = ["--data-dir", str(tmp_path / "data"), *(["--set", f"local.cache_dir={cache}"] if cache else [])]
    started = _pulsebridge("up", *common, "--pulsar", stack.pulsar_url, "--admin", stack.admin_url, "--json")
    assert started.returncode == 0, started.stderr
    state = json.loads(started.stdout)
    server = psutil.Process(state["servers"]["mqtt"]["pid"])
    os.kill(state["supervisor"]["pid"], signal.SIGKILL)
    assert not psutil.wait_procs([server], timeout=patient(30))[1]
    assert _pulsebridge("status", *common).returncode == 1


@pytest.mark.thorough
@pytest.mark.chaos
@pytest.mark.parametrize("name", ["mqtt", pytest.param("pulsar", marks=pytest.mark.long)])
def test_up_names_a_server_that_died_and_ends_the_other(stack: LocalStack, tmp_path: Path, name: str) -> None:
    cache = new_stack().settings.cache_dir
    common = ["--data-dir", str(tmp_path / "data"), *(["--set", f"local.cache_dir={cache}"] if cache else [])]
    given = ["--pulsar", stack.pulsar_url, "--admin", stack.admin_url] if name == "mqtt" else []
    started = _pulsebridge("up", *common, *given, "--json")
    assert started.returncode == 0, started.stderr
    state = json.loads(started.stdout)
    assert "mqtt" in state["servers"]
    ending = [psutil.Process(one["pid"]) for one in (*state["servers"].values(), state["supervisor"])]
    try:
        os.kill(state["servers"][name]["pid"], signal.SIGKILL)
        assert not psutil.wait_procs(ending, timeout=patient(60))[1]
        shown = _pulsebridge("status", *common)
    finally:
        _pulsebridge("down", *common)
    assert shown.returncode == 1
    line = f"{name} was ended by SIGKILL; its log ends:"
    assert f"Down: {line}" in shown.stdout
    assert f"the whole log: {state['logs'][name]}" in shown.stdout
    assert line in (tmp_path / "data/supervisor.log").read_text(encoding="utf-8")


@pytest.mark.thorough
@pytest.mark.chaos
def test_a_supervisor_that_lost_a_server_exits_with_1(stack: LocalStack, tmp_path: Path) -> None:
    settings = new_stack(pulsar_url=stack.pulsar_url, admin_url=stack.admin_url, data_dir=tmp_path).settings
    with subprocess.Popen(
        [sys.executable, "-m", "pulsebridge.local.supervisor", str(tmp_path)],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as supervisor:
        assert supervisor.stdin is not None
        supervisor.stdin.write(settings.model_dump_json().encode())
        supervisor.stdin.close()
        supervisor.stdin = None
        state = poll_for(
            lambda: (now := read_state(tmp_path)) and now.phase == "ready" and now,
            120,
            "the servers to be ready",
        )
        os.kill(state.servers["mqtt"].pid, signal.SIGTERM)  # the server itself, not by way of its owner
        _, err = supervisor.communicate(timeout=patient(60))
    assert supervisor.returncode == 1, err
    assert b"mqtt " in err
    assert b"the whole log: " in err
    ended = read_state(tmp_path)
    assert ended is not None
    assert (ended.phase, ended.servers["mqtt"].process()) == ("failed", None)


@pytest.mark.thorough
@pytest.mark.chaos
def test_the_owner_of_a_stack_learns_which_server_died(stack: LocalStack) -> None:
    with new_stack(pulsar_url=stack.pulsar_url, admin_url=stack.admin_url) as own:
        own.check()
        own.kill("mqtt")
        own.check()  # its owner's own doing
        own.restart("mqtt")
        server = psutil.Process(own.pids["mqtt"])
        server.kill()
        poll_for(lambda: own.servers["mqtt"].exit_code is not None, 30, "the guardian to see it")
        with pytest.raises(TransientError, match=r"mqtt was ended by SIGKILL; its log ends:(?s:.*)whole log") as caught:
            own.check()
        assert str(own.servers["mqtt"].log) in (caught.value.remedy or "")


def test_servers_stop_after_their_time(stack: LocalStack, tmp_path: Path) -> None:
    cache = new_stack().settings.cache_dir
    common = ["--data-dir", str(tmp_path / "data"), *(["--set", f"local.cache_dir={cache}"] if cache else [])]
    began = time.time()
    given = ["--mqtt", stack.mqtt_url, "--pulsar", stack.pulsar_url, "--admin", stack.admin_url]
    started = _pulsebridge("up", *common, *given, "--for", "2s", "--json")
    assert started.returncode == 0, started.stderr
    state = json.loads(started.stdout)
    assert state["servers"] == {}
    assert state["until"] >= began + 2
    poll_for(lambda: not psutil.pid_exists(state["supervisor"]["pid"]), 30, "the supervisor's end")
