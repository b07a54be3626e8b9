"""Many devices in a process of its own: they come and go, take commands, answer them, and log what they saw.

Run as ``python -m tests.support.device_fleet FOLDER``, with ``fleet.json`` (a ``FleetSpec``) there; it writes what
it receives to ``devices.log``, a line for each event (`DeviceEvent`). The standard input controls the process: ``stay``
has all devices come and leave no more, ``go`` lets them leave again; of those that never were there, ``connect N`` has the
first N connect and subscribe without a word on their status topics, and ``wake N`` has them say there that they came;
200 a second do either. Its end ends the process, which goes without a word to the broker. It says ``there N`` whenever
that number changes, at most four times a second.

A device leaves in one of three ways, by chance: it says goodbye, on its status topic and with DISCONNECT; its socket is
closed, so that the broker publishes its will; or it falls silent, with its connection open, and neither reads nor pings
until it comes back on a new connection.
"""

from __future__ import annotations

import heapq
import json
import os
import random
import selectors
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Final, NamedTuple

from tests.support import mqtt_packets as mqtt

__all__ = ["DeviceEvent", "FleetSpec", "command_topic", "device_name", "read_log", "status_topic"]

_BACKOFF_S: Final = 1.0
_A_SECOND: Final = 200


@dataclass(frozen=True)
class FleetSpec:
    """Which devices, and how they live. Device ``n`` is called ``dNNNNNN``; times are means, in seconds."""

    host: str
    port: int
    root: str
    first: int
    count: int
    seed: int
    present_s: float = 0.0
    """How long a device is there, 0: for good."""
    away_s: float = 0.0
    answers: bool = True
    old_share: float = 0.0
    """How many use MQTT 3.1.1, and read the position from the topic; the others use MQTT 5."""
    persistent_share: float = 0.0
    keep_alive_s: int = 15
    sleeping: int = 0
    """So many are away from the start, until they are woken by number."""
    others: tuple[tuple[str, int], ...] = ()
    """Hosts and ports of further brokers: each time that a device comes, it goes to one at random."""

    def write(self, folder: Path) -> None:
        """Write it for a fleet that is to run in ``folder``."""
        (folder / "fleet.json").write_text(json.dumps(asdict(self)), encoding="utf-8")


class DeviceEvent(NamedTuple):
    """``at`` in µs since the epoch. ``kind``: ``C`` connected, ``L`` left (``number`` says how: ``bye``, ``will``,
    ``silent``, or ``lost`` when the connection ended by itself), ``R`` received a command, ``A`` its answer was acknowledged by the broker.
    """

    at: int
    kind: str
    device: int
    connection: int
    number: str = ""
    """The command's payload."""
    position: str = ""
    repeat: bool = False
    dup: bool = False
    persistent: bool = False

    def line(self) -> str:
        marks = "".join(
            mark for mark, is_so in zip("RDP", (self.repeat, self.dup, self.persistent), strict=True) if is_so
        )
        return f"{self.at}\t{self.kind}\t{self.device}\t{self.connection}\t{self.number}\t{self.position}\t{marks}\n"


def read_log(path: Path) -> Iterator[DeviceEvent]:
    """Read what a fleet logged, less a line that is being written."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if not line.endswith("\n"):
                return
            at, kind, device, connection, number, position, marks = line[:-1].split("\t")
            yield DeviceEvent(
                int(at),
                kind,
                int(device),
                int(connection),
                number,
                position,
                "R" in marks,
                "D" in marks,
                "P" in marks,
            )


def device_name(number: int) -> str:
    """Return the name of a device."""
    return f"d{number:06d}"


def command_topic(root: str, number: int) -> str:
    """Return the topic on which a device takes commands, and below it."""
    return f"{root}/cmd/{device_name(number)}"


def status_topic(root: str, device: str) -> str:
    """Return the topic of a device's birth and will; ``+device`` gives the filter of a presence rule."""
    return f"{root}/status/{device}"


class _Device:
    def __init__(self, spec: FleetSpec, number: int, chance: random.Random) -> None:
        self.number = number
        self.name = device_name(number)
        self.version: mqtt.Version = "3.1.1" if chance.random() < spec.old_share else "5"
        self.persistent = chance.random() < spec.persistent_share
        self.chance = chance
        self.commands = command_topic(spec.root, number)
        self.status = status_topic(spec.root, self.name).encode()
        self.sock: socket.socket | None = None
        self.left_open: socket.socket | None = None
        """The connection on which it fell silent."""
        self.received = bytearray()
        self.connection = 0
        self.there = False
        self.wanted = False  # wants to be connected
        self.quiet = False  # does not say that it is there
        self.mid = 0
        self.answers: dict[int, str] = {}
        self.turn = 0  # counts comings and goings: timers of a former one are void

    def next_mid(self) -> int:
        self.mid = self.mid % 65535 + 1
        return self.mid


class Devices:
    """The fleet, on one thread."""

    def __init__(self, spec: FleetSpec, log: TextIOWrapper) -> None:
        self._spec = spec
        self._log = log
        chance = random.Random(spec.seed)
        self._devices = [
            _Device(spec, n, random.Random(chance.random())) for n in range(spec.first, spec.first + spec.count)
        ]
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, int, str]] = []
        self._leaving = spec.present_s > 0
        self._online = self._reported = 0
        self._report_at = 0.0
        self._next_dial = 0.0
        now = time.monotonic()
        for index, one in enumerate(self._devices[spec.sleeping :], spec.sleeping):
            self._come(index, one, now)

    def run(self) -> None:
        """Live until the standard input ends."""
        self._selector.register(sys.stdin, selectors.EVENT_READ, None)
        os.set_blocking(sys.stdin.fileno(), False)
        words = b""
        while True:
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                _, index, turn, what = heapq.heappop(self._timers)
                self._due(index, turn, what, now)
            if self._online != self._reported and now >= self._report_at:
                self._reported, self._report_at = self._online, now + 0.25
                print(f"there {self._online}", flush=True)
            self._log.flush()
            wait = min(0.25, max(0.0, self._timers[0][0] - now)) if self._timers else 0.25
            for key, _ in self._selector.select(wait):
                if key.data is not None:
                    self._receive(key.data, self._devices[key.data])
                    continue
                try:
                    data = os.read(sys.stdin.fileno(), 4096)
                except BlockingIOError:
                    continue
                if not data:
                    return
                words += data
                *lines, words = words.split(b"\n")
                for line in lines:
                    self._order(line.decode().split())

    # --- what is due ---

    def _order(self, words: list[str]) -> None:
        now = time.monotonic()
        if words[0] in ("connect", "wake"):
            for index, one in enumerate(self._devices[: int(words[1])]):
                one.quiet = words[0] == "connect"
                if not one.wanted:
                    self._come(index, one, now)
                elif one.there and not one.quiet:
                    self._at(now, index, "say")
            return
        self._leaving = words[0] == "go"
        for index, one in enumerate(self._devices):
            if not self._leaving and not one.wanted:
                self._come(index, one, now)
            elif self._leaving and one.there:
                self._leave_some_time(index, one, now)

    def _at(self, at: float, index: int, what: str) -> None:
        heapq.heappush(self._timers, (at, index, self._devices[index].turn, what))

    def _due(self, index: int, turn: int, what: str, now: float) -> None:
        one = self._devices[index]
        if turn != one.turn:
            return
        if what in ("dial", "say"):
            if now < self._next_dial:
                self._at(self._next_dial, index, what)
                return
            self._next_dial = now + 1 / _A_SECOND
        if what == "dial":
            self._dial(index, one, now)
        elif what == "say":
            self._say_online(index, one)
        elif what == "ping" and one.sock is not None:
            self._at(now + self._spec.keep_alive_s * 0.6, index, "ping")
            self._send(index, one, mqtt.PINGREQ)
        elif what == "leave" and self._leaving:
            self._leave(index, one, now)
        elif what == "come":
            self._come(index, one, now)

    def _come(self, index: int, one: _Device, now: float) -> None:
        one.wanted = True
        one.turn += 1
        self._at(now, index, "dial")

    def _leave_some_time(self, index: int, one: _Device, now: float) -> None:
        self._at(now + one.chance.expovariate(1 / self._spec.present_s), index, "leave")

    def _leave(self, index: int, one: _Device, now: float) -> None:
        how = one.chance.choice(("bye", "will", "silent"))
        if one.sock is not None and how == "bye":
            with suppress(OSError):
                one.sock.sendall(mqtt.publish(one.version, one.status, b"offline", one.next_mid()) + mqtt.DISCONNECT)
        one.wanted = False
        self._drop(index, one, how, keep_open=how == "silent")
        self._at(now + one.chance.expovariate(1 / self._spec.away_s), index, "come")

    # --- the connection ---

    def _dial(self, index: int, one: _Device, now: float) -> None:
        one.turn += 1
        own = (self._spec.host, self._spec.port)
        broker = one.chance.choice((own, *self._spec.others)) if self._spec.others else own
        try:
            one.sock = socket.create_connection((broker[0], broker[1]), timeout=1)
            one.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            will = (one.status.decode(), b"offline")
            one.sock.sendall(
                mqtt.connect(
                    f"{self._spec.root}-{one.name}",
                    one.version,
                    clean=not one.persistent,
                    keep_alive=self._spec.keep_alive_s,
                    will=will,
                )
            )
        except OSError:
            if one.sock is not None:
                one.sock.close()
            one.sock = None
            self._at(now + _BACKOFF_S, index, "dial")
            return
        self._selector.register(one.sock, selectors.EVENT_READ, index)
        self._at(now + self._spec.keep_alive_s * 0.6, index, "ping")

    def _send(self, index: int, one: _Device, data: bytes) -> None:
        try:
            assert one.sock is not None
            one.sock.sendall(data)
        except OSError:
            self._lost(index, one)

    def _lost(self, index: int, one: _Device) -> None:
        if one.sock is None:
            return
        self._drop(index, one, "lost")
        self._at(time.monotonic() + _BACKOFF_S, index, "dial")

    def _drop(self, index: int, one: _Device, how: str, *, keep_open: bool = False) -> None:
        """End the connection, or leave it open and unread."""
        one.turn += 1
        if one.left_open is not None:
            one.left_open.close()
            one.left_open = None
        if one.sock is not None:
            self._selector.unregister(one.sock)
            if keep_open:
                one.left_open = one.sock
            else:
                one.sock.close()
        one.sock = None
        one.received.clear()
        one.answers.clear()
        if one.there:
            self._note(one, "L", how)
            self._online -= 1
        one.there = False

    def _receive(self, index: int, one: _Device) -> None:
        assert one.sock is not None
        try:
            data = one.sock.recv(65536)
        except OSError:
            data = b""
        if not data:
            self._lost(index, one)
            return
        one.received += data
        for first, body in mqtt.split(one.received):
            if one.sock is None:
                return  # it was lost in an answer
            kind = first & 0xF0
            if kind == mqtt.PUBLISH:
                self._command(index, one, first, body)
            elif kind == mqtt.PUBACK:
                number = one.answers.pop(int.from_bytes(body[:2], "big"), None)
                if number is not None:
                    self._note(one, "A", number)
            elif kind == mqtt.CONNACK and body[1] == 0:
                one.connection += 1
                if one.left_open is not None:
                    one.left_open.close()
                    one.left_open = None
                self._note(one, "C")
                self._send(index, one, mqtt.subscribe(one.version, one.next_mid(), f"{one.commands}/#"))
            elif kind == mqtt.CONNACK:
                self._lost(index, one)
            elif kind == mqtt.SUBACK:
                if not one.quiet:
                    self._say_online(index, one)
                one.there = True
                self._online += 1
                if self._leaving:
                    self._leave_some_time(index, one, time.monotonic())

    def _say_online(self, index: int, one: _Device) -> None:
        if one.sock is not None:
            online = mqtt.publish(one.version, one.status, b"online", one.next_mid())
            self._send(index, one, online)

    def _command(self, index: int, one: _Device, first: int, body: bytes) -> None:
        at = time.time_ns() // 1000
        got = mqtt.delivered(one.version, first, body)
        levels = got.topic[len(one.commands) + 1 :].split("/") if got.topic != one.commands else []
        if one.version == "5":
            user = dict(got.user)
            position, repeat = user["position"], user.get("repeat") == "1"
        else:
            position, repeat = ".".join(levels[:6]), levels[6:] == ["repeat"]
        number = got.payload.decode()
        self._log.write(
            DeviceEvent(at, "R", one.number, one.connection, number, position, repeat, got.dup, one.persistent).line()
        )
        back = mqtt.puback(got.mid)
        if self._spec.answers:
            topic = got.response_topic or f"{self._spec.root}/answers/{position.replace('.', '/')}".encode()
            mid = one.next_mid()
            one.answers[mid] = number
            answer = f"{one.name} did {number}".encode()
            back += mqtt.publish(one.version, topic, answer, mid, got.correlation_data)
        self._send(index, one, back)

    def _note(self, one: _Device, kind: str, number: str = "") -> None:
        at = time.time_ns() // 1000
        self._log.write(DeviceEvent(at, kind, one.number, one.connection, number, persistent=one.persistent).line())


def main(folder: Path) -> None:
    """Run the fleet that ``fleet.json`` describes."""
    spec = FleetSpec(**json.loads((folder / "fleet.json").read_text(encoding="utf-8")))
    with (folder / "devices.log").open("w", encoding="utf-8") as log:
        Devices(spec, log).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
