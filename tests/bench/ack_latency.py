"""How long a bridge keeps a PUBLISH before its PUBACK: the bench plays the MQTT broker to it, at a set rate.

Open loop: the time counts from when a message was due, so that a stall of the bridge shows in full, and so does
what batching hides. One session, QoS 1, at most ``WINDOW`` messages unacknowledged, as Mosquitto is set to.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.bench.flood import field, packet, payload, publish

__all__ = ["PlayedBroker"]

WINDOW = 1000


class PlayedBroker:
    """The other end of one bridge's MQTT 3.1.1 connection. Used by one thread."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.port: int = listener.getsockname()[1]
        self._sock: socket.socket | None = None
        self._in = b""

    @classmethod
    @contextmanager
    def listening(cls) -> Iterator[PlayedBroker]:
        """Listen on a free loopback port until the block ends."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            broker = cls(listener)
            try:
                yield broker
            finally:
                if broker._sock is not None:
                    broker._sock.close()

    def subscribed(self) -> bool:
        """Wait a moment for the bridge to connect and subscribe. Returns whether it has."""
        if self._sock is None:
            if not select.select([self._listener], [], [], 0.2)[0]:
                return False
            self._sock, _ = self._listener.accept()
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sock.setblocking(False)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            for kind, body in self._packets(0.2):
                if kind == 0x10:
                    self._sock.sendall(b"\x20\x02\x00\x00")
                elif kind == 0x80:
                    self._sock.sendall(packet(0x90, body[:2] + b"\x01" * _filters(body)))
                    return True
        return False

    def latencies_ms(self, topics: list[str], rate: float, count: int) -> list[float]:
        """Publish ``count`` messages at ``rate`` per second. Returns the time from due to PUBACK of each, in ms."""
        assert self._sock is not None
        names = [field(t.encode()) for t in topics]
        due = [0.0] * 65_536
        late: list[float] = []
        sent, begin, give_up = 0, time.monotonic(), time.monotonic() + count / rate + 60
        while len(late) < count:
            now = time.monotonic()
            if now > give_up:
                raise TimeoutError(f"{len(late)} of {count} messages acknowledged")
            ready = min(count, int((now - begin) * rate) + 1, len(late) + WINDOW)
            if ready > sent:
                burst = []
                for n in range(sent, ready):
                    mid = n % 60_000 + 1
                    due[mid] = begin + n / rate
                    burst.append(publish(names[n % len(names)], mid, payload(n)))
                self._send(b"".join(burst))
                sent = ready
            for kind, body in self._packets(0.001):
                if kind == 0x40:
                    late.append((time.monotonic() - due[int.from_bytes(body, "big")]) * 1000)
        return late

    def _send(self, data: bytes) -> None:
        assert self._sock is not None
        while data:
            try:
                data = data[self._sock.send(data) :]
            except BlockingIOError:
                select.select([], [self._sock], [], 1.0)

    def _packets(self, wait_s: float) -> Iterator[tuple[int, bytes]]:
        assert self._sock is not None
        if not select.select([self._sock], [], [], wait_s)[0]:
            return
        data = self._sock.recv(65_536)
        if not data:
            raise ConnectionError("the bridge closed its connection")
        data, at = self._in + data, 0
        while at + 1 < len(data) and at + 2 + data[at + 1] <= len(data):  # nothing above 127 bytes comes
            kind, size = data[at] & 0xF0, data[at + 1]
            if kind == 0xC0:
                self._sock.sendall(b"\xd0\x00")
            yield kind, data[at + 2 : at + 2 + size]
            at += 2 + size
        self._in = data[at:]


def _filters(body: bytes) -> int:
    """Return how many filters a SUBSCRIBE of MQTT 3.1.1 has."""
    at, count = 2, 0
    while at < len(body):
        at += 2 + int.from_bytes(body[at : at + 2], "big") + 1
        count += 1
    return count
