"""The pure part of Pulsar's protocol: what is cut is whole again, what is no protocol is refused."""

from __future__ import annotations

import socket
from dataclasses import dataclass

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.pulsar.wire import commands
from bridge.pulsar.wire.batches import encode, head_of
from bridge.pulsar.wire.commands import Answer, Frames, Kind, Redirect, WireError
from bridge.pulsar.wire.connection import Accepted, BrokerConnection
from bridge.pulsar.wire.protobuf import fields, number, text


@dataclass(frozen=True)
class Sent:
    payload: bytes
    key: str
    properties: dict[str, str]
    event_ms: int

    @property
    def head(self) -> bytes:
        return head_of(self.key, self.properties)


MESSAGES = st.lists(
    st.builds(
        Sent,
        payload=st.binary(max_size=300),
        key=st.text(max_size=8),
        properties=st.dictionaries(st.text(max_size=5), st.text(max_size=200), max_size=3),
        event_ms=st.integers(0, 1 << 42),
    ),
    min_size=1,
    max_size=30,
)


def read_back(frame: bytes) -> tuple[dict[int, int | bytes], dict[int, int | bytes], list[Sent]]:
    """Take a SEND apart, by the protocol's description and not by what made it."""
    total, size = int.from_bytes(frame[:4], "big"), int.from_bytes(frame[4:8], "big")
    assert total == len(frame) - 4
    command = dict(fields(frame[8 : 8 + size]))
    assert command[1] == 6
    rest = frame[8 + size :]
    assert rest[:2] == b"\x0e\x01"
    assert int.from_bytes(rest[2:6], "big") == google_crc32c.value(rest[6:])
    metadata_size = int.from_bytes(rest[6:10], "big")
    metadata = dict(fields(rest[10 : 10 + metadata_size]))
    body, at, found = rest[10 + metadata_size :], 0, []
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        key, properties, length, event_ms = "", {}, -1, 0
        for field, value in fields(body[at + 4 : at + 4 + size]):
            if field == 1:
                assert isinstance(value, bytes)
                pair = dict(fields(value))
                properties[bytes(pair[1]).decode()] = bytes(pair[2]).decode()
            elif field == 2:
                key = bytes(value).decode()
            elif field == 3:
                length = int(value)
            elif field == 5:
                event_ms = int(value)
        at += 4 + size
        found.append(Sent(body[at : at + length], key, properties, event_ms))
        at += length
    send = command[6]
    assert isinstance(send, bytes)
    return dict(fields(send)), metadata, found


@given(MESSAGES, st.integers(0, 1 << 40), st.integers(200, 2000))
def test_batches_have_every_message_in_order(messages: list[Sent], sequence: int, most: int) -> None:
    batches = encode(messages, producer=3, name=b"p", sequence=sequence, publish_ms=5, most=most)
    found, at = [], sequence
    for batch in batches:
        send, metadata, held = read_back(batch.frame)
        assert (send[1], send[2], send[3], send[6]) == (3, at, len(held), at + len(held) - 1)
        assert (metadata[1], metadata[2], metadata[3], metadata[11]) == (b"p", at, 5, len(held))
        assert (batch.sequence, batch.messages) == (at, len(held))
        assert len(held) == 1 or batch.size <= most + 64
        found += held
        at += len(held)
    assert found == messages


@given(
    st.lists(st.sampled_from([commands.PING, commands.PONG, commands.close(commands.Kind.CLOSE_PRODUCER, 7, 9)])),
    st.integers(1, 9),
)
def test_frames_are_the_same_however_they_are_cut(sent: list[bytes], step: int) -> None:
    data = b"".join(sent)
    whole = Frames().feed(data)
    frames = Frames()
    cut = [answer for at in range(0, len(data), step) for answer in frames.feed(data[at : at + step])]
    assert cut == whole
    assert len(whole) == len(sent)


@pytest.mark.parametrize("data", [b"HTTP/1.1 400 Bad Request", b"\0\0\0\1\0\0\0\0", b"\0\0\0\x08\0\0\0\x09aaaa"])
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"a frame|a command"):
        Frames().feed(data)


@given(st.binary(max_size=64))
def test_any_command_can_be_read(data: bytes) -> None:
    answer = commands.parse(data)
    answer.error(2, 3)
    commands.redirect_of(answer, tls=False)


def test_a_lookup_names_the_broker_that_fits_the_connection() -> None:
    answer = Answer(Kind.LOOKUP_RESPONSE, {1: b"pulsar://a:6650", 2: b"pulsar+ssl://a:6651", 3: 1, 4: 9, 5: 1})
    assert commands.redirect_of(answer, tls=False) == Redirect("pulsar://a:6650", True, True, False)
    assert commands.redirect_of(answer, tls=True) == Redirect("pulsar+ssl://a:6651", True, True, False)
    failed = Answer(Kind.LOOKUP_RESPONSE, {3: 2, 4: 9, 6: 4, 7: b"no\nright"})
    assert commands.redirect_of(failed, tls=False) == WireError("AuthorizationError", "no right")
    no_broker = Answer(Kind.LOOKUP_RESPONSE, {3: 1, 4: 9})
    assert isinstance(commands.redirect_of(no_broker, tls=True), WireError)


def test_a_receipt_of_what_was_dropped_names_no_entry() -> None:
    below = (1 << 64) - 1
    for ledger, entry, names in ((7, 0, True), (0, 5, True), (below, below, False)):
        receipt = Answer(Kind.SEND_RECEIPT, {3: number(1, ledger) + number(2, entry)})
        assert receipt.names_an_entry(3) is names
    assert Answer(Kind.SEND_RECEIPT, {}).names_an_entry(3)


def test_a_number_below_zero_is_read_as_protobuf_writes_it() -> None:
    data = number(1, (1 << 64) - 1) + text(2, b"x")
    assert dict(fields(data)) == {1: (1 << 64) - 1, 2: b"x"}


@given(
    numbers=st.lists(st.tuples(st.integers(1, 2000), st.integers(0, (1 << 64) - 1)), min_size=1, max_size=5),
    data=st.data(),
)
def test_a_truncated_message_yields_the_fields_before_the_cut(
    numbers: list[tuple[int, int]], data: st.DataObject
) -> None:
    parts = [part for field, value in numbers for part in (number(field, value), text(field, b"x" * (value % 200)))]
    whole = b"".join(parts)
    cut = data.draw(st.integers(0, len(whole)))
    left, complete = cut, 0
    while complete < len(parts) and left >= len(parts[complete]):
        left -= len(parts[complete])
        complete += 1
    assert list(fields(whole[:cut])) == list(fields(whole))[:complete]


def test_h39_a_broker_that_reads_nothing_gets_no_answer_to_what_it_goes_on_to_ask() -> None:
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    accepted = Accepted(ours, "broker", 1 << 20, lambda: commands.auth_response("", b""))
    connection = BrokerConnection(accepted)
    with theirs:
        theirs.settimeout(60)
        theirs.sendall(commands.PING * 100_000)
        found = theirs.recv(1 << 20)
        assert connection.ended is None
        theirs.shutdown(socket.SHUT_WR)
        while data := theirs.recv(1 << 20):
            found += data
    connection.close()
    pongs = Frames().feed(found)
    assert {pong.kind for pong in pongs} == {Kind.PONG}
    assert len(pongs) < 10_000
