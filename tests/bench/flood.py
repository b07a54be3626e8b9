"""A publisher that costs little: pre-encoded MQTT 3.1.1 QoS 1 packets on one raw socket, with a window.

It is a load, not a device: it keeps no session and takes each PUBACK only as a count.
"""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import dataclass

__all__ = ["Flood", "flood"]

_PUBACK_BYTES = 4
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


def flood(
    host: str,
    port: int,
    *,
    topics: list[str],
    count: int,
    payload: bytes,
    window: int = 1000,
    timeout_s: float = 120,
) -> Flood:
    """Publish ``count`` messages over ``topics`` in turn as fast as the broker acknowledges them.

    Raises ConnectionError when the broker refuses the connection or closes it early.
    """
    with socket.create_connection((host, port), timeout=timeout_s) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _connect(sock)
        bodies = [_field(t.encode()) for t in topics]
        acks = _AckCounter(sock, count)
        acks.start()
        started = time.monotonic()
        sent = 0
        while sent < count:
            if not acks.wait_below(sent, window, timeout_s):
                raise ConnectionError(
                    f"{acks.seen} of {sent} publishes acknowledged, then silence for {timeout_s} s"
                )
            burst = range(sent, min(sent + _BURST, count))
            sock.sendall(b"".join(_publish(bodies[i % len(bodies)], i % 60_000 + 1, payload) for i in burst))
            sent = burst.stop
        acks.join(timeout_s)
        if acks.seen < count:
            raise ConnectionError(f"{acks.seen} of {count} publishes acknowledged within {timeout_s} s")
        return Flood(count, time.monotonic() - started)


class _AckCounter(threading.Thread):
    def __init__(self, sock: socket.socket, expected: int) -> None:
        super().__init__(daemon=True)
        self._sock = sock
        self._expected = expected
        self._changed = threading.Condition()
        self.seen = 0

    def run(self) -> None:
        got = 0
        while self.seen < self._expected:
            data = self._sock.recv(65_536)
            if not data:
                return
            got += len(data)
            with self._changed:
                self.seen = got // _PUBACK_BYTES
                self._changed.notify_all()

    def wait_below(self, sent: int, window: int, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: sent - self.seen <= window, timeout_s)


def _connect(sock: socket.socket) -> None:
    client_id = f"bench-{time.monotonic_ns()}".encode()
    variable = b"\x00\x04MQTT\x04\x02\x00\x3c" + _field(client_id)
    sock.sendall(b"\x10" + _length(len(variable)) + variable)
    answer = sock.recv(4)
    if len(answer) < 4 or answer[3] != 0:
        raise ConnectionError(f"the MQTT broker answered CONNECT with {answer!r}")


def _publish(topic: bytes, mid: int, payload: bytes) -> bytes:
    size = len(topic) + 2 + len(payload)
    return b"\x32" + _length(size) + topic + mid.to_bytes(2, "big") + payload


def _field(data: bytes) -> bytes:
    return len(data).to_bytes(2, "big") + data


def _length(n: int) -> bytes:
    out = bytearray()
    while True:
        n, digit = divmod(n, 128)
        out.append(digit | (0x80 if n else 0))
        if not n:
            return bytes(out)
