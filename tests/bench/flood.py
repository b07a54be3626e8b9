"""A publisher that costs little: QoS 1 packets, encoded beforehand, on one raw socket, with a window.

It is a load, not a device: it keeps no session and takes each PUBACK only as a count.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "PAYLOAD_BYTES",
    "PROPERTIES",
    "Flood",
    "Load",
    "Protocol",
    "field",
    "flood",
    "paced",
    "packet",
    "payload",
    "prepared",
    "publish",
]

Protocol = Literal["3.1.1", "5"]

PAYLOAD_BYTES = 128
PROPERTIES = (
    b"\x03\x00\x10application/json"  # content type
    b"\x02\x00\x00\x0e\x10"  # message expiry interval
    b"\x26\x00\x04site\x00\x07plant-7"  # user properties
    b"\x26\x00\x02fw\x00\x061.22.0"
)
"""Properties that a device with MQTT 5 may send with each payload."""

_BURST = 100


@dataclass(frozen=True, slots=True)
class Flood:
    """What was sent: how many publishes the broker acknowledged and in what time."""

    acknowledged: int
    seconds: float

    @property
    def rate(self) -> float:
        """Acknowledged publishes per second."""
        return self.acknowledged / self.seconds


def payload(number: int) -> bytes:
    """Return the payload of message ``number``: its id, filled up to 128 bytes."""
    return b"%012d" % number + b"x" * (PAYLOAD_BYTES - 12)


@dataclass(frozen=True, slots=True)
class Load:
    """Publishes, ready to be sent: making them would be measured as well."""

    count: int
    protocol: Protocol
    bursts: list[bytes]


def prepared(
    topics: list[str], *, first: int = 0, count: int, protocol: Protocol = "3.1.1", properties: bytes = b""
) -> Load:
    """Return messages ``first`` and following over ``topics`` in turn."""
    names = [field(t.encode()) for t in topics]
    tails = [b""] * len(names)
    if protocol == "5":
        # Beside what all devices say, each says who it is: a user property of its own.
        own = [b"\x26\x00\x04unit" + name if properties else b"" for name in names]
        tails = [packet_properties(properties + mine) for mine in own]
    bursts = [
        b"".join(
            publish(names[n % len(names)], n % 60_000 + 1, tails[n % len(names)] + payload(n))
            for n in range(at, min(at + _BURST, first + count))
        )
        for at in range(first, first + count, _BURST)
    ]
    return Load(count, protocol, bursts)


def flood(
    host: str,
    port: int,
    load: Load,
    *,
    window: int = 1000,
    timeout_s: float = 120,
) -> Flood:
    """Publish a load as fast as the broker acknowledges it.

    Raises ConnectionError when the broker refuses the connection or closes it early.
    """
    count = load.count
    with socket.create_connection((host, port), timeout=timeout_s) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _connect(sock, load.protocol)
        acks = _AckCounter(sock, count)
        acks.start()
        started = time.monotonic()
        for sent, burst in enumerate(load.bursts):
            if not acks.wait_below(sent * _BURST, window, timeout_s):
                raise ConnectionError(
                    f"{acks.seen} of {sent * _BURST} publishes acknowledged, then silence for {timeout_s} s"
                )
            sock.sendall(burst)
        acks.join(timeout_s)
        if acks.seen < count:
            raise ConnectionError(f"{acks.seen} of {count} publishes acknowledged within {timeout_s} s")
        return Flood(count, time.monotonic() - started)


def paced(host: str, port: int, packets: Sequence[bytes], rate: float, *, timeout_s: float = 30) -> float:
    """Send packets (MQTT 3.1.1) when they are due, whatever happens behind them: open loop.

    Returns when the first was due, in seconds since the epoch; packet n was due n / rate later. Raises ConnectionError
    when not all were acknowledged in the end.
    """
    with socket.create_connection((host, port), timeout=timeout_s) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _connect(sock, "3.1.1")
        acks = _AckCounter(sock, len(packets))
        acks.start()
        begin, sent = time.time(), 0
        while sent < len(packets):
            due = min(len(packets), int((time.time() - begin) * rate) + 1)
            if due > sent:
                sock.sendall(b"".join(packets[sent:due]))
                sent = due
            time.sleep(0.002)
        acks.join(timeout_s)
        if acks.seen < len(packets):
            raise ConnectionError(f"{acks.seen} of {len(packets)} publishes acknowledged")
        return begin


class _AckCounter(threading.Thread):
    def __init__(self, sock: socket.socket, expected: int) -> None:
        super().__init__(daemon=True)
        self._sock = sock
        self._expected = expected
        self._changed = threading.Condition()
        self._rest = b""
        self.seen = 0

    def run(self) -> None:
        while self.seen < self._expected:
            data = self._sock.recv(65_536)
            if not data:
                return
            # Each PUBACK says its length: with MQTT 5 a reason code may follow the packet identifier.
            data, at, got = self._rest + data, 0, 0
            while at + 1 < len(data) and at + 2 + data[at + 1] <= len(data):
                at += 2 + data[at + 1]
                got += 1
            self._rest = data[at:]
            with self._changed:
                self.seen += got
                self._changed.notify_all()

    def wait_below(self, sent: int, window: int, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: sent - self.seen <= window, timeout_s)


def _connect(sock: socket.socket, protocol: Protocol) -> None:
    client_id = f"bench-{time.monotonic_ns()}".encode()
    level, none = (5, b"\0") if protocol == "5" else (4, b"")
    sock.sendall(packet(0x10, b"\x00\x04MQTT" + bytes([level]) + b"\x02\x00\x3c" + none + field(client_id)))
    head = sock.recv(2)
    answer = sock.recv(head[1]) if len(head) == 2 else b""
    if len(answer) < 2 or answer[1] != 0:
        raise ConnectionError(f"the MQTT broker answered CONNECT with {head + answer!r}")


def publish(topic: bytes, mid: int, rest: bytes) -> bytes:
    """Return a PUBLISH at QoS 1; ``topic`` is a field, ``rest`` the properties (MQTT 5) and the payload."""
    return packet(0x32, topic + mid.to_bytes(2, "big") + rest)


def packet_properties(properties: bytes) -> bytes:
    """Return properties behind their length."""
    return _length(len(properties)) + properties


def packet(first: int, body: bytes) -> bytes:
    """Return a packet with its fixed header."""
    return bytes([first]) + _length(len(body)) + body


def field(data: bytes) -> bytes:
    """Return bytes behind their length of two bytes."""
    return len(data).to_bytes(2, "big") + data


def _length(n: int) -> bytes:
    out = bytearray()
    while True:
        n, digit = divmod(n, 128)
        out.append(digit | (0x80 if n else 0))
        if not n:
            return bytes(out)
