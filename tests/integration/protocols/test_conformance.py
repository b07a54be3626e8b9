"""What every protocol handler must keep, run on each: ours, and a third party's from an installed package."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from bridge import contract
from bridge.ingest.service import IngestService
from bridge.protocols.running import HANDLERS_GROUP
from bridge.pulsar.admin import PulsarAdmin
from bridge.settings import Settings
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.local.stack import LocalStack
from tests.support.ingest import Stored, dead_letters, running_ingest, stored
from tests.support.protocol_peers import FETCHING, LIMIT, PEERS, Peer, held, install_line_protocol
from tests.support.push import command, provision, push_in_thread, receipts, write_commands
from tests.support.stack import provisioned
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def third_party(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The third party's package, installed into a folder of its own, which is on the path while these tests run."""
    folder = tmp_path_factory.mktemp("site")
    install_line_protocol(folder)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("line_protocol", None)


@pytest.fixture(params=list(PEERS))
def peer(request: pytest.FixtureRequest, stack: LocalStack) -> Peer:
    """The devices of one protocol, and a topic ``fleet`` of one partition to write to."""
    if request.param == "line":
        request.getfixturevalue("third_party")
    namespaces = provisioned(stack, partitions=1)
    with PulsarAdmin(namespaces, timeout_s=30) as admin:
        admin.create_partitioned(namespaces.readings_topic("fleet"), 1)
    return PEERS[request.param](stack, namespaces)


@pytest.fixture(params=FETCHING)
def fetcher(request: pytest.FixtureRequest, stack: LocalStack) -> Peer:
    """The devices of one protocol that fetch their commands."""
    if request.param == "line":
        request.getfixturevalue("third_party")
    return PEERS[request.param](stack, provisioned(stack))


@contextmanager
def flowing(peer: Peer, settings: Settings | None = None) -> Iterator[IngestService]:
    """Run the handler with its devices connected, and one message stored."""
    with running_ingest(settings or peer.settings()) as service, peer.opened(service):
        peer.send(f"{peer.root}/first/m", b"first#0")
        poll_for(lambda: peer.acked == 1, 60, "the first acknowledgement")
        yield service


def readings(peer: Peer) -> list[Stored]:
    return [m for m in stored(peer.namespaces, "fleet") if m.payload != b"first#0"]


def in_order(messages: list[Stored]) -> bool:
    """Whether the first copies of each device's numbered messages are in order."""
    seen: dict[str, list[int]] = {}
    for message in messages:
        device, number = message.payload.decode().strip().split("#")
        if int(number) not in seen.setdefault(device, []):
            seen[device].append(int(number))
    return all(numbers == sorted(numbers) for numbers in seen.values())


def test_it_opens_and_closes_again_and_again_and_leaves_nothing_behind(peer: Peer) -> None:
    before = threading.active_count()
    for _run in range(3):
        with running_ingest(peer.settings()) as service:
            assert all(service.running.readiness()[peer.protocol].values())
        assert service.closed
        assert service.running.listeners[peer.protocol] == [] or not service.running.running
    poll_for(lambda: threading.active_count() <= before, 30, "its threads to end")


def test_messages_one_after_the_other_are_stored_and_acknowledged_in_order(peer: Peer) -> None:
    with flowing(peer):
        for number in range(30):
            peer.send(f"{peer.root}/d/m", b"d#%d" % number)
            poll_for(lambda number=number: peer.acked == number + 2, 30, "its acknowledgement")  # type: ignore[misc]
            assert len(readings(peer)) > number  # acknowledged is stored
    assert [m.payload for m in readings(peer)] == [b"d#%d" % n for n in range(30)]


def test_many_devices_at_once_keep_each_its_order(peer: Peer) -> None:
    with flowing(peer):
        for number in range(40):
            for device in range(8):
                peer.send(f"{peer.root}/d{device}/m", b"d%d#%d" % (device, number))
        poll_for(lambda: peer.acked == 321, 90, "every acknowledgement")
    found = readings(peer)
    assert len({m.payload for m in found}) == 320
    assert in_order(found)
    assert {m.key for m in found} == {f"d{n}" for n in range(8)}


def test_what_pulsar_does_not_confirm_is_not_acknowledged(peer: Peer) -> None:
    with flowing(peer) as service:
        with held(peer.namespaces):
            for device in range(5):
                peer.send(f"{peer.root}/d{device}/m", b"d%d#0" % device)
            poll_for(lambda: service.in_flight == 5, 60, "all to be on their way")
            assert peer.acked == 1
            assert readings(peer) == []
        poll_for(lambda: peer.acked == 6, 90, "the acknowledgements")
        assert {m.payload for m in readings(peer)} == {b"d%d#0" % n for n in range(5)}


def test_a_full_window_bounds_what_is_taken_and_then_all_flows(peer: Peer) -> None:
    with flowing(peer) as service:
        highest = 0
        with held(peer.namespaces):
            for number in range(4):
                for device in range(2 * LIMIT):
                    peer.send(f"{peer.root}/d{device}/m", b"d%d#%d" % (device, number))
            # MQTT 5 and 3.1.1 brokers may keep back more than a window asks for: half is what all fill.
            poll_for(lambda: service.in_flight >= LIMIT // 2, 60, "the window to fill")
            for _look in range(20):
                highest = max(highest, service.in_flight)
                readings(peer)
            assert peer.acked == 1
        assert highest <= LIMIT
        poll_for(lambda: peer.acked >= 8 * LIMIT + 1, 120, "every acknowledgement")
    found = readings(peer)
    assert len({m.payload for m in found}) == 8 * LIMIT
    assert in_order(found)


def test_a_stop_waits_for_what_was_taken_and_acknowledges_it(peer: Peer) -> None:
    with flowing(peer) as service:
        with held(peer.namespaces):
            for device in range(8):
                peer.send(f"{peer.root}/d{device}/m", b"d%d#0" % device)
            poll_for(lambda: service.in_flight == 8, 60, "all to be on their way")
            service.stop()
            poll_for(service.stopping.is_set, 30, "the stop to begin")
            assert not service.ended.is_set()
        poll_for(service.ended.is_set, 60, "the end")
        poll_for(lambda: peer.acked == 9, 10, "the acknowledgements")
    assert {m.payload for m in readings(peer)} == {b"d%d#0" % n for n in range(8)}


def test_what_cannot_be_written_is_a_dead_letter_and_then_acknowledged(peer: Peer) -> None:
    filters = (f"{peer.root}/#", f"other-{peer.root}/#", f"third-{peer.root}/#")
    settings = peer.settings(limits={"message_size": "128KiB", "topics": 1}, filters=filters)
    with flowing(peer, settings):
        peer.send(f"{peer.root}/d/m", b"d#0")
        peer.send(f"{peer.root}/d/m", b"x" * 100_000)
        peer.send(f"other-{peer.root}/d/m", b"its route may name one")
        poll_for(lambda: peer.acked == 4, 60, "the topic that its route may name")
        peer.send(f"third-{peer.root}/d/m", b"one topic too many")
        peer.send(f"{peer.root}/d/m", b"d#1")
        poll_for(lambda: peer.acked == 6, 60, "every acknowledgement")
    assert [m.payload for m in readings(peer)] == [b"d#0", b"d#1"]
    reasons = {m.payload[:9]: m.properties[contract.P_DEAD_REASON] for m in dead_letters(peer.namespaces)}
    assert set(reasons) == {b"x" * 9, b"one topic"}
    assert "the limit is" in reasons[b"x" * 9]
    assert "ingest.limits.topics is 1" in reasons[b"one topic"]


def test_the_envelope_names_the_origin_of_a_message(peer: Peer) -> None:
    with flowing(peer):
        peer.send(f"{peer.root}/w-1/glucose", b"\x00\xffbinary")
        poll_for(lambda: peer.acked == 2, 30, "the acknowledgement")
    (found,) = readings(peer)
    properties = found.properties
    assert (found.payload, found.key) == (b"\x00\xffbinary", "w-1")
    assert properties[contract.P_VERSION] == contract.ENVELOPE_VERSION
    assert properties[contract.P_TOPIC] == f"{peer.root}/w-1/glucose"
    assert (properties[contract.P_RULE], properties[contract.P_DEVICE], properties[contract.P_QOS]) == (
        "fleet",
        "w-1",
        "1",
    )
    assert properties[contract.P_PROTOCOL] == {"mqtt": "3.1.1"}.get(peer.protocol, peer.protocol)
    assert properties[contract.P_LINK] == {"mqtt": peer.root}.get(peer.protocol, peer.protocol)


def test_commands_are_fetched_in_order_and_confirmed_with_their_answers(fetcher: Peer) -> None:
    settings = fetcher.command_settings()
    provision(settings)
    commands = [command(settings, "d", n) for n in range(12)]
    with push_in_thread(settings), running_ingest(settings) as service, fetcher.fetching(service, "d") as device:
        write_commands(settings, commands)
        after, got = "", []
        while len(got) < len(commands):
            found = device.fetch(10, after)
            assert found is not None
            got.append(found)
            after = found[0] if len(got) % 2 else ""  # every other one is confirmed by the next fetch
            assert after or device.confirm(found[0], b"done " + found[2])
        assert [payload for _, _, payload in got] == [one.payload for one in commands]
        assert not any(repeat for _, repeat, _ in got)
        assert device.fetch(1, after) is None
        poll_for(lambda: len(receipts(settings)) == len(commands), 30, "a receipt of each")
    found_states = {(rows[0].state, rows[0].answer) for rows in receipts(settings).values()}
    assert found_states == {("answered", b""), *(("answered", b"done %d" % n) for n in range(1, 12, 2))}


def test_what_a_device_does_not_confirm_comes_again_marked_when_it_is_back(fetcher: Peer) -> None:
    settings = fetcher.command_settings()
    provision(settings)
    commands = [command(settings, "d", n) for n in range(6)]
    with push_in_thread(settings) as metrics, running_ingest(settings) as service:
        with fetcher.fetching(service, "d") as device:
            write_commands(settings, commands)
            first = device.fetch(30, "")
            assert first is not None
            assert first[1:] == (False, b"0")
        poll_for(lambda: metrics.gauges["parked"].labels("0")._value.get() == 6, 60, "all commands to be parked")
        with fetcher.fetching(service, "d") as device:
            seen: list[bytes] = []
            after = ""
            while len(seen) < len(commands):
                found = device.fetch(30, after)
                assert found is not None
                after, repeat, payload = found
                assert repeat or (payload not in seen and payload != b"0")
                seen += [payload] if payload not in seen else []
            assert device.confirm(after, b"last")
    assert seen == [one.payload for one in commands]


def test_the_newer_request_of_a_device_ends_the_older_one(fetcher: Peer) -> None:
    settings = fetcher.command_settings()
    provision(settings)
    with (
        push_in_thread(settings),
        running_ingest(settings) as service,
        fetcher.fetching(service, "d") as older,
        fetcher.fetching(service, "d") as newer,
        ThreadPoolExecutor(2) as pool,
    ):
        waits = pool.submit(older.fetch, 50, "")
        while not waits.done():
            newer.fetch(1, "")
        assert waits.result() is None
        write_commands(settings, [command(settings, "d", 0)])
        found = newer.fetch(30, "")
        assert found is not None
        assert newer.confirm(found[0], b"")


def test_a_third_party_s_handler_is_found_and_lives_through_its_phases_once(
    third_party: None, stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    (point,) = (p for p in entry_points(group=HANDLERS_GROUP) if p.name == "line")
    assert point.dist is not None
    assert point.dist.name == "line-protocol"
    settings = PEERS["line"](stack, namespaces).settings()
    with running_ingest(settings.model_copy(update={"messaging_protocols": ("line", "http")})) as service:
        (line, http) = service.running.handlers
        assert (line.protocol_name, http.protocol_name) == ("line", "http")
        assert line.phases == ["initialize", "advertise", "start"]  # type: ignore[attr-defined]
        assert service.running.data["line"] == '{"lines": true}'
    assert line.phases == ["initialize", "advertise", "start", "close"]  # type: ignore[attr-defined]


def test_a_handler_that_is_not_named_is_not_even_imported(
    third_party: None, stack: LocalStack, namespaces: PulsarSettings
) -> None:
    sys.modules.pop("line_protocol", None)
    with running_ingest(PEERS["http"](stack, namespaces).settings()):
        assert "line_protocol" not in sys.modules
