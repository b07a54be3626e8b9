"""Many devices on one thread: MQTT 3.1.1 by hand, QoS 1, one publish in flight each, through any failure of the broker.

A load with a ledger: device ``n`` publishes ``0, 1, 2, …``; ``confirmed[n]`` is how many the broker has acknowledged,
so every number below it must arrive, in order. What was not acknowledged when a connection ended is published again.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from array import array
from bisect import bisect
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple

from tests.support.raw_mqtt import packet, text

__all__ = ["Confirmed", "Fleet"]

_BACKOFF_S = 1.0
_SPACING_S = 0.01  # between two dials: a broker that has just started does not get them all at once


def _mid(number: int) -> bytes:
    """Return the packet identifier of a device's publish, another one than that of the publish before."""
    return (number % 65535 + 1).to_bytes(2, "big")


class Confirmed(NamedTuple):
    """When one publish was acknowledged and on which connection; times in seconds since the epoch."""

    at: float
    connection: int
    """Which one of its device, from 1 on."""
    connected: float
    nth: int
    """The how manieth that was acknowledged there, from 1 on."""


class _Device:
    def __init__(self, number: int) -> None:
        self.number = number
        self.sock: socket.socket | None = None
        self.received = b""
        self.connected = False
        self.in_flight = False
        self.next = 0
        self.due = 0.0
        self.retry_at = 0.0
        self.times = array("d")
        """When each publish was acknowledged."""
        self.connections: list[tuple[int, float]] = []
        """The first publish of each connection, and when it was accepted."""


class Fleet:
    """``devices`` devices that publish ``rate`` messages per second together, on ``root/dNNN/x``, until stopped."""

    def __init__(
        self,
        host: str,
        port: int,
        root: str,
        *,
        devices: int,
        rate: float,
        size: int = 0,
        confirmed: Sequence[int] = (),
    ) -> None:
        """``confirmed``: how many publishes of each device were acknowledged before; it continues there."""
        self._address = (host, port)
        self._root = root
        self._size = size
        self._period = devices / rate
        self._devices = [_Device(number) for number in range(devices)]
        self.confirmed = list(confirmed) or [0] * devices
        for one, count in zip(self._devices, self.confirmed, strict=True):
            one.next = count
        self.repeated: set[tuple[int, int]] = set()
        """What a device published again, for it saw no acknowledgement."""
        self.strange: list[str] = []
        """Acknowledgements of what was not in flight; they confirm nothing."""
        self._next_dial = 0.0
        self._selector = selectors.DefaultSelector()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)

    def __enter__(self) -> Fleet:
        begin = time.monotonic()
        for one in self._devices:
            one.due = begin + self._period * one.number / len(self._devices)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def total(self) -> int:
        """How many publishes the broker has acknowledged."""
        return sum(self.confirmed)

    def confirmed_at(self, device: int, number: int) -> Confirmed:
        """Return what is known of an acknowledged publish; call it once the fleet is stopped."""
        one = self._devices[device]
        connection = bisect(one.connections, number, key=lambda made: made[0])
        first, connected = one.connections[connection - 1]
        return Confirmed(one.times[number], connection, connected, number - first + 1)

    def stop(self) -> None:
        """End all connections. What is not acknowledged may have arrived or not."""
        self._stopping.set()
        self._thread.join(30)
        for one in self._devices:
            self._drop(one)
        self._selector.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            now = time.monotonic()
            for one in self._devices:
                if one.sock is None:
                    if now >= one.retry_at and now >= self._next_dial:
                        self._next_dial = now + _SPACING_S
                        self._dial(one, now)
                elif one.connected and not one.in_flight and now >= one.due:
                    self._publish(one, now)
            for key, _ in self._selector.select(0.002):
                self._receive(key.data)

    def _dial(self, one: _Device, now: float) -> None:
        one.retry_at = now + _BACKOFF_S
        try:
            one.sock = socket.create_connection(self._address, timeout=1)
            client = f"{self._root}-{one.number:03d}"
            head = text("MQTT") + bytes([4, 2]) + b"\x00\x3c" + text(client)
            one.sock.sendall(packet(0x10, head))
        except OSError:
            self._drop(one)
            return
        self._selector.register(one.sock, selectors.EVENT_READ, one)

    def _publish(self, one: _Device, now: float) -> None:
        name = f"d{one.number:03d}"
        payload = f"{name}#{one.next}".encode().ljust(self._size)
        body = text(f"{self._root}/{name}/x") + _mid(one.next) + payload
        assert one.sock is not None
        try:
            one.sock.sendall(packet(0x32, body))
        except OSError:
            self._drop(one)
            return
        one.in_flight = True
        # Open loop, but no burst after an outage.
        one.due = max(one.due + self._period, now - 5 * self._period)

    def _receive(self, one: _Device) -> None:
        assert one.sock is not None
        try:
            data = one.sock.recv(4096)
        except OSError:
            data = b""
        if not data:
            self._drop(one)
            return
        one.received += data
        while len(one.received) >= 4:  # CONNACK and PUBACK alike
            answer, one.received = one.received[:4], one.received[4:]
            if answer[0] == 0x20 and answer[3] == 0:
                one.connected = True
                one.connections.append((one.next, time.time()))
            elif answer[0] == 0x40 and not (one.in_flight and answer[2:] == _mid(one.next)):
                self.strange.append(f"d{one.number:03d}#{one.next}: {answer.hex()} at {time.time():.3f}")
            elif answer[0] == 0x40:
                one.in_flight = False
                one.next += 1
                one.times.append(time.time())
                self.confirmed[one.number] = one.next

    def _drop(self, one: _Device) -> None:
        if one.in_flight:
            self.repeated.add((one.number, one.next))
        if one.sock is not None:
            with suppress(KeyError, ValueError):  # its connection was never made
                self._selector.unregister(one.sock)
            one.sock.close()
        one.sock, one.received = None, b""
        one.connected = one.in_flight = False
