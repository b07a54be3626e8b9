"""Thousands of connected devices in one process, a few hundred bytes each: raw sockets and epoll, MQTT 3.1.1, QoS 1.

Run as ``python -m tests.scale.lean_devices SPEC`` with a JSON object (``LeanSpec``). Each device connects from an
address 127.0.0.x, subscribes to its command topic, and waits. The standard input controls the process, a line each:
``publish RATE SECONDS`` has the devices publish in turn, each message when it is due; the end of the input ends the
process. It writes one JSON object a line: ``{"there": N}`` while they connect, and ``{"published": N, "acknowledged": N,
"commands": N, "late_ms": [...]}`` after each ``publish`` and about every second.
"""

from __future__ import annotations

import contextlib
import errno
import json
import select
import socket
import sys
import time
from array import array
from dataclasses import asdict, dataclass

from tests.support import mqtt_packets as mqtt
from tests.support.device_fleet import command_topic, device_name

__all__ = ["LeanSpec", "published_by", "reading_topic"]

_PORTS = 20_000
"""Devices of one client address: Linux gives 28,000 ports to each by default."""
_CONNECTING = 50
_TICK_S = 0.005


@dataclass(frozen=True)
class LeanSpec:
    """Which devices are connected where. Their messages are ``size`` bytes."""

    host: str
    port: int
    root: str
    first: int
    count: int
    size: int = 128
    keep_alive_s: int = 3600

    def encode(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self))


def reading_topic(root: str, number: int) -> str:
    """Return the topic on which a device publishes."""
    return f"{root}/up/{device_name(number)}/reading"


def published_by(number: int, count: int) -> int:
    """Return which device of a process publishes its message of that number."""
    return number * 7919 % count


class _Devices:
    def __init__(self, spec: LeanSpec) -> None:
        self._spec = spec
        self._poll = select.epoll()
        self._fds = array("i", bytes(4 * spec.count))  # by device
        self._device_of: dict[int, int] = {}  # by socket
        self._sockets: list[socket.socket] = []
        self._parts: dict[int, bytearray] = {}  # of packets that have not arrived in full
        self._next = 0
        self._connecting = 0
        self._commands = self._acknowledged = self._published = 0
        self.there = 0
        self._late_ms: list[float] = []

    # --- connecting ---

    def connect_all(self) -> None:
        """Connect all devices, some at a time."""
        shown = 0.0
        while self.there < self._spec.count:
            while self._next < self._spec.count and self._connecting < _CONNECTING:
                self._connect(self._next)
                self._next += 1
            self._receive(0.1)
            if time.monotonic() > shown + 1:
                shown = time.monotonic()
                say({"there": self.there})
        say({"there": self.there})

    def _connect(self, number: int) -> None:
        spec = self._spec
        sock = socket.socket()
        # Ports are then chosen when it connects: each address has all of them.
        sock.setsockopt(socket.IPPROTO_IP, getattr(socket, "IP_BIND_ADDRESS_NO_PORT", 24), 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        sock.bind((f"127.0.0.{2 + (spec.first + number) // _PORTS % 250}", 0))
        sock.connect((spec.host, spec.port))
        sock.setblocking(False)
        name = device_name(spec.first + number)
        sock.send(mqtt.connect(f"{spec.root}-{name}", "3.1.1", clean=True, keep_alive=spec.keep_alive_s))
        self._sockets.append(sock)
        self._fds[number] = sock.fileno()
        self._device_of[sock.fileno()] = number
        self._poll.register(sock.fileno(), select.EPOLLIN)
        self._connecting += 1

    # --- what the broker sends ---

    def _receive(self, wait_s: float) -> None:
        for fd, _ in self._poll.poll(wait_s, 1000):
            number = self._device_of[fd]
            data = self._read(self._sockets[number])
            received = self._parts.pop(fd, bytearray())
            received += data
            for first, body in mqtt.split(received):
                self._packet(number, first, body)
            if received:
                self._parts[fd] = received

    def _read(self, sock: socket.socket) -> bytes:
        try:
            data = sock.recv(65_536)
        except BlockingIOError:
            return b""
        if not data:
            raise ConnectionError("the MQTT broker closed the connection of a device")
        return data

    def _packet(self, number: int, first: int, body: bytes) -> None:
        spec, sock = self._spec, self._sockets[number]
        if first & 0xF0 == mqtt.PUBLISH:
            one = mqtt.delivered("3.1.1", first, body)
            self._commands += 1
            due_us = int(one.payload.split(b":")[1])
            if due_us:
                self._late_ms.append(time.time() * 1000 - due_us / 1000)
            sock.send(mqtt.puback(one.mid))
        elif first == mqtt.PUBACK:
            self._acknowledged += 1
        elif first == mqtt.CONNACK:
            if body[1]:
                raise ConnectionError(f"the MQTT broker refused a device with code {body[1]}")
            sock.send(mqtt.subscribe("3.1.1", 1, command_topic(spec.root, spec.first + number)))
        elif first == mqtt.SUBACK:
            self.there += 1
            self._connecting -= 1

    # --- what the devices send ---

    def publish(self, rate: float, seconds: float) -> None:
        """Have the devices publish in turn, open loop."""
        spec, begin, sent, shown = self._spec, time.time(), 0, 0.0
        total = int(rate * seconds)
        while sent < total:
            due = min(total, int((time.time() - begin) * rate) + 1)
            while sent < due:
                number = published_by(sent, spec.count)
                at_us = int((begin + sent / rate) * 1e6)
                payload = b'{"due_us":%d,"n":%d}' % (at_us, sent)
                topic = reading_topic(spec.root, spec.first + number).encode()
                packet = mqtt.publish("3.1.1", topic, payload.ljust(spec.size), sent % 60_000 + 1)
                with contextlib.suppress(BlockingIOError):
                    self._sockets[number].send(packet)
                    self._published += 1
                sent += 1
            self._receive(_TICK_S)
            if time.monotonic() > shown + 1:
                shown = time.monotonic()
                self.report()

    def wait(self, seconds: float) -> None:
        """Receive what comes."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._receive(left)

    def report(self) -> None:
        """Say what was sent and received since the last report."""
        say(
            {
                "published": self._published,
                "acknowledged": self._acknowledged,
                "commands": self._commands,
                "late_ms": [round(late, 1) for late in self._late_ms],
            }
        )
        self._published = self._acknowledged = self._commands = 0
        self._late_ms.clear()


def say(what: dict[str, object]) -> None:
    print(json.dumps(what), flush=True)


def main() -> None:
    devices = _Devices(LeanSpec(**json.loads(sys.argv[1])))
    try:
        devices.connect_all()
    except OSError as e:
        if e.errno == errno.EMFILE:
            raise SystemExit("too many open files for the devices of one process") from e
        raise
    orders = select.poll()
    orders.register(sys.stdin.fileno(), select.POLLIN)
    while True:
        devices.wait(0.5)
        devices.report()
        if orders.poll(0):
            line = sys.stdin.readline().split()
            if not line:
                return
            devices.publish(float(line[1]), float(line[2]))
            devices.wait(1.0)
            devices.report()
            say({"done": True})


if __name__ == "__main__":
    main()
