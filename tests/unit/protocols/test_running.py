"""Handlers found, taken through their phases, and closed when one fails; with a real event loop and real sockets."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import ConfigError, MissingExtraError, TerminalError
from bridge.ingest.service import IngestService
from bridge.protocols.handler import Acceptor, Address, ProtocolHandler
from bridge.protocols.listening import Listening
from bridge.protocols.running import HANDLERS_GROUP, Phase, Running, load_handlers
from bridge.settings import Settings


class Upper(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data.upper())  # type: ignore[attr-defined]
        self.transport.close()


class Recording(ProtocolHandler):
    """Notes its phases in a list it shares with others; fails in the given one."""

    def __init__(self, name: str = "upper", notes: list[str] | None = None, failing: str = "") -> None:
        self.name = name
        self.notes = [] if notes is None else notes
        self.failing = failing
        self.addresses: dict[Address, Acceptor] = {}

    def note(self, phase: str) -> None:
        self.notes.append(f"{phase} {self.name}")
        if phase == self.failing:
            raise ValueError("on purpose")

    @property
    def protocol_name(self) -> str:
        return self.name

    def initialize(self, settings: Settings) -> None:
        self.note("initialize")

    def protocol_data_to_advertise(self) -> str:
        self.note("advertise")
        return f"data of {self.name}"

    def start(self, service: object) -> None:
        self.note("start")

    def listeners(self) -> Iterable[tuple[Address, Acceptor]]:
        return self.addresses.items()

    def close(self) -> None:
        self.note("close")


@contextmanager
def running(*handlers: ProtocolHandler) -> Iterator[Running]:
    listening = Listening()
    listening.start()
    try:
        yield Running(handlers, listening)
    finally:
        listening.end()


SERVICE: Any = SimpleNamespace(settings=Settings())


def test_handlers_go_through_their_phases_and_their_listeners_answer() -> None:
    notes: list[str] = []
    first, second = Recording("a", notes), Recording("b", notes)
    second.addresses = {Address("127.0.0.1", 0): Acceptor(Upper), Address("localhost", 0): Acceptor(Upper)}
    with running(first, second) as one:
        one.go(SERVICE, Phase.START)
        assert one.running
        assert one.data == {"a": "data of a", "b": "data of b"}
        bound = one.listeners["b"]
        assert len(bound) >= 2
        for address in bound:
            with socket.create_connection(address) as client:
                client.sendall(b"shout")
                assert client.recv(100) == b"SHOUT"
        one.stop()
        one.stop()
        with pytest.raises(OSError):
            socket.create_connection(bound[0], timeout=5).recv(1)
    assert notes == [
        *("initialize a", "initialize b", "advertise a", "advertise b", "start a", "start b"),
        *("close b", "close a"),
    ]


@pytest.mark.parametrize("phase", ["initialize", "advertise", "start"])
def test_a_failure_in_a_phase_closes_what_was_begun(phase: str) -> None:
    notes: list[str] = []
    handlers = [Recording("a", notes), Recording("b", notes, failing=phase), Recording("c", notes)]
    with running(*handlers) as one:
        with pytest.raises(TerminalError, match="of the protocol handler 'b' failed: ValueError: on purpose"):
            one.go(SERVICE, Phase.START)
        one.stop()
    begun = [n.split()[1] for n in notes if n.startswith("initialize")]
    assert notes[-len(begun) :] == [f"close {name}" for name in reversed(begun)]
    assert begun == (["a", "b"] if phase == "initialize" else ["a", "b", "c"])


def test_a_taken_port_fails_the_start_and_a_failing_close_hinders_no_other() -> None:
    notes: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as other:
        first, second = Recording("a", notes), Recording("b", notes, failing="close")
        second.addresses = {Address(*other.getsockname()): Acceptor(Upper)}
        with running(first, second) as one:
            with pytest.raises(TerminalError, match=r"b cannot listen on 127\.0\.0\.1"):
                one.go(SERVICE, Phase.START)
            one.stop()
    assert notes[-2:] == ["close b", "close a"]


class NoListening:
    """Opens nothing."""

    def open(self, name: str, listeners: object) -> list[Address]:
        return []

    def close(self, name: str) -> None:
        pass


@given(
    names=st.lists(st.sampled_from("abcde"), min_size=1, max_size=5, unique=True),
    failing=st.sets(st.integers(0, 25)),
    calls=st.lists(st.sampled_from(list(Phase)), max_size=4),
)
def test_whatever_fails_each_phase_comes_once_in_order_and_all_that_was_begun_is_stopped(
    names: list[str], failing: set[int], calls: list[Phase]
) -> None:
    notes: list[str] = []

    class Failing(Recording):
        def note(self, phase: str) -> None:
            notes.append(f"{phase} {self.name}")
            if len(notes) - 1 in failing:
                raise ValueError("on purpose")

    listening: Any = NoListening()
    one = Running([Failing(name) for name in names], listening)
    try:
        for up_to in calls:
            one.go(SERVICE, up_to)
    except TerminalError:
        assert not one.running
    else:
        assert one.running == (Phase.START in calls)
    one.stop()
    one.stop()
    one.go(SERVICE, Phase.START)
    assert not one.running
    assert len(notes) == len(set(notes))
    begun = [n.split()[1] for n in notes if n.startswith("initialize")]
    before = notes[: len(notes) - len(begun)]
    assert notes[len(before) :] == [f"close {name}" for name in reversed(begun)]
    order = [f"{phase} {name}" for phase in ("initialize", "advertise", "start") for name in names]
    assert before == order[: len(before)]


class Lacking(Recording):
    def initialize(self, settings: Settings) -> None:
        import a_package_that_does_not_exist  # noqa: F401


def test_a_missing_package_of_a_handler_names_the_install_line() -> None:
    with (
        running(Lacking("http")) as one,
        pytest.raises(MissingExtraError, match=r'pip install "pulsebridge\[http\]"'),
    ):
        one.go(SERVICE, Phase.START)


# --- loading ---


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, HANDLERS_GROUP)


@pytest.fixture
def third_party(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(sys.modules, "a_third_party", sys.modules[__name__])
    return "a_third_party"


class Touchy(Recording):
    def __init__(self) -> None:
        raise RuntimeError("not today")


def test_only_named_handlers_are_loaded_and_in_the_order_given(third_party: str) -> None:
    points = [
        point("mqtt", "bridge.ingest.mqtt_handler:MqttHandler"),
        point("upper", f"{third_party}:Recording"),
        point("touchy", f"{third_party}:Touchy"),
    ]
    assert [h.protocol_name for h in load_handlers(("upper", "mqtt"), points)] == ["upper", "mqtt"]
    with pytest.raises(TerminalError, match=r"'touchy' .* cannot be loaded: RuntimeError: not today"):
        load_handlers(("touchy",), points)


def test_names_that_lead_nowhere_are_refused_all_at_once(third_party: str) -> None:
    points = [
        point("mqtt", "x:Y"),
        point("http", f"{third_party}:Recording"),
        point("http", f"{third_party}:Touchy"),
    ]
    with pytest.raises(ConfigError) as caught:
        load_handlers(("mqt", "http", "coap"), points)
    assert "'mqt'; did you mean 'mqtt'?" in str(caught.value)
    assert "'http' is provided twice, by a_third_party:Recording and a_third_party:Touchy" in str(caught.value)
    assert "'coap'; installed: http, mqtt" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "why"), [("Listening", "is not a ProtocolHandler"), ("Recording", "is named 'upper'")]
)
def test_what_is_no_handler_of_that_name_is_refused(third_party: str, value: str, why: str) -> None:
    with pytest.raises(TerminalError, match=why):
        load_handlers(("lower",), [point("lower", f"{third_party}:{value}")])


def test_the_service_refuses_an_unknown_protocol_before_it_dials() -> None:
    with pytest.raises(ConfigError, match="no protocol handler is called 'mqtts'"):
        IngestService(Settings(messaging_protocols=("mqtts",)))
