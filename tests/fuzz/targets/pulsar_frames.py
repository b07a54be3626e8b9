"""Frames of Pulsar's binary protocol: a broker that says anything, to a connection with a producer, and to a lookup."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any, Final

from hypothesis import strategies as st

from bridge.errors import RefusedError, TransientError
from bridge.pulsar.wire import commands
from bridge.pulsar.wire.broker_link import BrokerLink
from bridge.pulsar.wire.client import Brokers
from bridge.pulsar.wire.commands import Answer, Kind, WireError
from bridge.pulsar.wire.connection import Accepted, BrokerConnection
from bridge.pulsar.wire.producer import BatchProducer, Identity
from bridge.pulsar.wire.protobuf import number, text
from bridge.settings.pulsar import PulsarSettings
from tests.fuzz.engine import Case, Check, Target
from tests.support.waiting import poll_for

__all__ = ["PULSAR_FRAMES"]

_PRODUCER: Final = 7
_SEQUENCE: Final = 40
_PATIENCE_S: Final = 20.0

_numbers = st.sampled_from([0, 1, 2, 3, _PRODUCER, _SEQUENCE, 41, 2**31, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)
_urls = st.sampled_from(
    [
        b"pulsar://127.0.0.1:1", b"pulsar://a,b", b"pulsar://[::1", b"http://x", b"pulsar://", b"", b"\xff", b"pulsar://x:99999",
        b"pulsar://x:y", b"pulsar://\xe2\x80\xa8:1", b"pulsar+ssl://x", b"pulsar://" + b"x" * 300 + b":1", b"pulsar://.:1", b"pulsar://a..b:1",
        b"pulsar://\xf0\x9f\x98\x80:1", b"pulsar://x\0y:1",
    ]
)  # fmt: skip
_values = _numbers | st.binary(max_size=12) | _urls
_fields = st.lists(st.tuples(st.integers(1, 12), _values), max_size=8)
_kinds = st.sampled_from([int(kind) for kind in Kind] + [0, 1, 12, 33, 99, 2**31])
_commands = st.tuples(st.just("command"), _kinds, _fields, st.binary(max_size=20))
_raw = st.tuples(
    st.just("raw"),
    st.one_of(
        st.binary(max_size=24),
        st.sampled_from(
            [
                b"\xff\xff\xff\xff\0\0\0\4\x08\x03",
                b"\0\0\0\x08\0\0\0\xff\x08\x03",
                b"\0\0\0\4\0\0\0\0",
                b"\0\0\0\3\0\0\0\0",
                b"HTTP/1.1 400 Bad\r\n\r\n",
            ]
        ),
        st.integers(1, 60_000).map(lambda n: (n + 4).to_bytes(4, "big") + n.to_bytes(4, "big") + b"\x80" * n),
    ),
)


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    if draw(st.booleans()):
        return "lookup", draw(st.integers(0, 3)), draw(_fields), draw(_urls)
    items = draw(st.lists(_commands if draw(st.booleans()) else _commands | _raw, max_size=6))
    return "connection", items, draw(st.lists(st.integers(0, 200), max_size=4))


def _body(fields: Any) -> bytes:
    return b"".join(text(n, value) if isinstance(value, bytes) else number(n, value) for n, value in fields)


def _frame(kind: int, body: bytes, entry: bytes = b"") -> bytes:
    command = number(1, kind) + text(kind, body)
    return (len(command) + 4 + len(entry)).to_bytes(4, "big") + len(command).to_bytes(4, "big") + command + entry


def _encoded(one: Any) -> bytes:
    return bytes(one[1]) if one[0] == "raw" else _frame(one[1] or 1, _body(one[2]), one[3])


class _Message:
    payload, head, event_ms = b"x", b"", 0


def _connection(case: Case) -> None:
    _, items, cuts = case
    near, far = socket.socketpair()
    stream = b"".join(map(_encoded, items))
    allowed = all(one[0] == "command" for one in items)
    connection = BrokerConnection(Accepted(near, "fuzz", 1 << 20, lambda: commands.auth_response("", b"")))
    outcomes: list[object] = []
    answers: list[object] = []
    producer = BatchProducer(connection, _PRODUCER)
    producer.opened(Identity("p", 0, _SEQUENCE))
    producer.send([_Message()], outcomes.append)
    asking = threading.Thread(
        target=lambda: answers.append(connection.request(1, commands.frame(Kind.LOOKUP), 60.0)), daemon=True
    )
    asking.start()
    with far:
        far.settimeout(_PATIENCE_S)
        edges = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
        with suppress(OSError):  # closed by a connection that met what is no protocol
            for a, b in pairwise(edges):
                far.sendall(stream[a:b])
            far.sendall(commands.PING)
        if allowed:
            received = b""
            while commands.PONG not in received:
                more = far.recv(65_536)
                assert more, f"the connection ended at well-formed frames: {connection.ended}"
                received += more
    poll_for(lambda: connection.ended is not None, _PATIENCE_S, "the end of the connection")
    asking.join(_PATIENCE_S)
    assert len(answers) == 1, "a request has no answer"
    assert isinstance(answers[0], Answer | WireError)
    poll_for(lambda: bool(outcomes), _PATIENCE_S, "an outcome of what was sent")
    assert len(outcomes) == 1, f"{len(outcomes)} outcomes of one send"
    connection.close()


class _LookedUp:
    """A broker that takes every connection and answers each lookup alike."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self.answer = b""
        self.connected = b""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                peer, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        frames = commands.Frames()
        with peer, suppress(OSError):
            while data := peer.recv(65_536):
                for found in frames.feed(data):
                    if found.kind == Kind.CONNECT:
                        peer.sendall(self.connected)
                    elif found.kind == Kind.LOOKUP:
                        peer.sendall(_frame(Kind.LOOKUP_RESPONSE, self.answer + number(4, found.number(2))))


class _World:
    def __init__(self, server: socket.socket) -> None:
        self._broker = _LookedUp(server)
        port = int(server.getsockname()[1])
        self._settings = PulsarSettings(
            service_url=f"pulsar://127.0.0.1:{port}", operation_timeout="20s", connection_timeout="5s"
        )
        self.escaped: list[object] = []

    def check(self, case: Case) -> None:
        self.escaped.clear()
        if case[0] == "lookup":
            self._lookup(case)
        else:
            _connection(case)
        assert not self.escaped, f"a thread ended with {self.escaped}"

    def _lookup(self, case: Case) -> None:
        _, response, fields, url = case
        self._broker.connected = _frame(Kind.CONNECTED, _body(fields))
        own = [one for one in fields if one[0] not in (1, 3, 4)]
        self._broker.answer = text(1, url) + number(3, response) + _body(own)
        brokers = Brokers(self._settings, BrokerLink)
        try:
            brokers.owner("persistent://a/b/c-partition-0", "fuzzing", time.monotonic() + 20)
        except (TransientError, RefusedError):
            pass
        finally:
            brokers.close()


@contextmanager
def _opened() -> Iterator[Check]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        world = _World(server)
        before, threading.excepthook = threading.excepthook, lambda args: world.escaped.append(args.exc_value)
        try:
            yield world.check
        finally:
            threading.excepthook = before


PULSAR_FRAMES: Final = Target(
    "pulsar_frames",
    "Whatever a Pulsar broker sends, each request has one answer or one declared error, each message one outcome, no "
    "thread ends with an error, and a connection ends only at what is not a frame.",
    _cases,
    _opened,
    examples=100,
)
