"""Hostile devices: ordinary MQTT clients by raw sockets, each of which publishes what should hurt ingest or push.

They write what a broker without ACLs accepts from any client, less the topics of the honest devices.
"""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from tests.support.mqtt_packets import PUBACK, connect, split
from tests.support.raw_mqtt import packet, text, variable

__all__ = ["HostileDevices", "Target"]

_ANSWER_S: Final = 2.0
_PAUSE_S: Final = (0.01, 0.2)
_FLOOD: Final = 100
_RETAINED: Final = 20
"""Topics on which a poisonous message is retained."""
_BOM: Final = "\ufeff"


@dataclass(frozen=True)
class Target:
    """The topics of hostile devices. ``places`` returns partition, ledger, entry and index of commands in flight."""

    host: str
    port: int
    root: str
    places: Callable[[], Iterable[tuple[int, int, int, int]]]

    @property
    def answers(self) -> str:
        """The answer topic of push."""
        return f"{self.root}/answers"


def _publish(
    topic: str | bytes, payload: bytes = b"evil", *, properties: bytes = b"", qos: int = 1, retain: bool = False
) -> bytes:
    """Return an MQTT 5 PUBLISH with ``properties``, its packet identifier 1."""
    mid = b"\0\1" if qos else b""
    return packet(0x30 | qos << 1 | retain, text(topic) + mid + variable(len(properties)) + properties + payload)


def _user(name: str | bytes, value: str | bytes) -> bytes:
    return b"\x26" + text(name) + text(value)


class HostileDevices:
    """``count`` threads that attack in turns until stopped; ``sent`` and ``taken`` count by the name of the attack."""

    def __init__(self, target: Target, *, count: int, seed: int) -> None:
        self._target = target
        self._seed = seed
        self.sent: Counter[str] = Counter()
        self.taken: Counter[str] = Counter()
        """What the broker has confirmed, and so gives to its subscribers."""
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"hostile-{number}", daemon=True)
            for number in range(count)
        ]

    def __enter__(self) -> HostileDevices:
        for one in self._threads:
            one.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the attacks."""
        self._stopping.set()
        for one in self._threads:
            one.join(30)

    @property
    def rounds(self) -> int:
        """How often the attack that was tried least was tried."""
        with self._lock:
            return min((self.sent[name] for name in _ATTACKS), default=0)

    def text(self) -> str:
        """Return each attack with how often it was sent, and taken by the broker."""
        return ", ".join(f"{name} {self.sent[name]} ({self.taken[name]} taken)" for name in sorted(self.sent))

    def _run(self, number: int) -> None:
        chance = random.Random(self._seed + number)
        turn = 0
        while not self._stopping.is_set():
            names = list(_ATTACKS)
            chance.shuffle(names)
            for name in names:
                turn += 1
                if self._stopping.wait(chance.uniform(*_PAUSE_S)):
                    return
                confirmed = self._attack(f"{self._target.root}-evil-{number}-{turn % 50}", _ATTACKS[name], chance)
                with self._lock:
                    self.sent[name] += 1
                    self.taken[name] += confirmed

    def _attack(self, client_id: str, attack: _Attack, chance: random.Random) -> int:
        """Connect, send, and wait for what the broker answers. Returns how many publishes it confirmed."""
        confirmed, received = 0, bytearray()
        sent = attack(self._target, chance)
        wanted = sum(one[0] & 0x06 > 0 for one in sent)
        with (
            suppress(OSError),
            socket.create_connection((self._target.host, self._target.port), timeout=5) as sock,
        ):
            sock.settimeout(_ANSWER_S)
            sock.sendall(connect(client_id, "5", clean=True, keep_alive=60))
            sock.sendall(b"".join(sent))
            until = time.monotonic() + _ANSWER_S
            while confirmed < wanted and time.monotonic() < until:
                received += sock.recv(65_536) or self._closed()
                for first, body in split(received):
                    code = body[2] if len(body) > 2 else 0
                    confirmed += first & 0xF0 in (PUBACK, 0x50) and code < 0x80
                    if first & 0xF0 == 0x50:
                        sock.sendall(packet(0x62, body[:2]))
        return confirmed

    @staticmethod
    def _closed() -> bytes:
        raise ConnectionError("the broker closed the connection")


_Attack = Callable[[Target, random.Random], list[bytes]]


def _device(target: Target, chance: random.Random) -> str:
    return f"{target.root}/evil{chance.randrange(50)}/y"


def _mark_in_user(target: Target, chance: random.Random) -> list[bytes]:
    return [_publish(_device(target, chance), properties=_user("n", _BOM + "v"))]


def _mark_in_type(target: Target, chance: random.Random) -> list[bytes]:
    return [_publish(_device(target, chance), properties=b"\x03" + text(_BOM))]


def _null(target: Target, chance: random.Random) -> list[bytes]:
    return [_publish(_device(target, chance), properties=_user("n\0", "v"))]


def _no_utf8(target: Target, chance: random.Random) -> list[bytes]:
    properties = chance.choice([_user(b"\xff", b"\xfe"), b"\x03" + text(b"\xed\xa0\x80")])
    topic = _device(target, chance).encode()
    return [_publish(topic if chance.random() < 0.5 else topic + b"\xff", properties=properties)]


def _control(target: Target, chance: random.Random) -> list[bytes]:
    return [_publish(f"{target.root}/evil\x1b[2J\nhttp:/y", properties=_user("\x07", "\u202e"))]


def _long_topic(target: Target, chance: random.Random) -> list[bytes]:
    return [_publish(f"{target.root}/{'x' * 65_000}/y")]


def _long_name(target: Target, chance: random.Random) -> list[bytes]:
    name = chance.choice(["x", "é"]) * 1_000_000
    return [_publish(f"{target.root}/named/y", json.dumps({"id": name}).encode())]


def _forged(target: Target, chance: random.Random) -> list[bytes]:
    found = []
    for partition, ledger, entry, index in list(target.places())[-10:]:
        place = f"0.{partition}.{ledger}.{entry}.{index}"
        failed = chance.choice([b"", _user("failed", "1")])
        found.append(_publish(f"{target.answers}/0/{partition}", b"forged", properties=b"\x09" + text(place) + failed))
        found.append(_publish(f"{target.answers}/{place.replace('.', '/')}", b"forged"))
        found.append(_publish(f"{target.answers}/{place.replace('.', '/')}/failed", b"forged"))
    return found or [_publish(f"{target.answers}/0/0", b"forged")]


def _poisoned_answer(target: Target, chance: random.Random) -> list[bytes]:
    properties = chance.choice([_user(_BOM, _BOM), b"\x03" + text(_BOM), b"\x09" + text(b"\xff" * 9)])
    return [_publish(f"{target.answers}/0/{chance.randrange(4)}", properties=properties)]


def _resume_flood(target: Target, chance: random.Random) -> list[bytes]:
    asked = [b"earliest", b'{"from":"0.0.0.0.0"}', b"[" * 900, _BOM.encode()]
    flood = [
        _publish(f"{target.root}/resume/evil{chance.randrange(1000)}", chance.choice(asked), qos=0)
        for _ in range(_FLOOD)
    ]
    return [*flood, _publish(f"{target.root}/resume/evil", chance.choice(asked), properties=_user(_BOM, "v"))]


def _retained(target: Target, chance: random.Random) -> list[bytes]:
    topic = f"{target.root}/status/evil{chance.randrange(_RETAINED)}"
    return [_publish(topic, b"online", properties=_user(_BOM, "v"), retain=True)]


def _exactly_once(target: Target, chance: random.Random) -> list[bytes]:
    return [_publish(_device(target, chance), properties=_user("n", _BOM), qos=2)]


def _invented(target: Target, chance: random.Random) -> list[bytes]:
    names = [f"{target.root}/inv{chance.randrange(10**9)}/y" for _ in range(20)]
    return [_publish(name, b"1") for name in names]


def _invented_status(target: Target, chance: random.Random) -> list[bytes]:
    return [_publish(f"{target.root}/status/inv{chance.randrange(10**9)}", b"online") for _ in range(20)]


def _malformed(target: Target, chance: random.Random) -> list[bytes]:
    properties = chance.choice(
        [
            b"\x03" + text("a") + b"\x03" + text("b"),
            b"\x01\x02",
            b"\x23\0\1",
            b"\x0b\0",
            b"\xff",
            b"\x26\0\xff",
            b"\x01",
        ]
    )
    return [_publish(_device(target, chance), properties=properties)]


def _not_mqtt(target: Target, chance: random.Random) -> list[bytes]:
    return [chance.choice([b"\x32\xff\xff\xff\xff\x01", b"\0\0", b"\xf0\0", b"\x36\3\0\1a", b"\x82\0", b"\x30\0"])]


def _impostor(target: Target, chance: random.Random) -> list[bytes]:
    return [_publish(_device(target, chance), properties=_user("pulsebridge-origin", "push"))]


def _bomb(target: Target, chance: random.Random) -> list[bytes]:
    payloads = [
        b"[" * 100_000,
        b"\xc4\x82\x00\xc2\x5a\x00\x01\x86\xa0" + b"\xff" * 100_000,
        b'{"id":' + b"9" * 100_000 + b"}",
    ]
    return [_publish(f"{target.root}/named/y", chance.choice(payloads))]


_ATTACKS: Final[dict[str, _Attack]] = {
    "U+FEFF in a user property": _mark_in_user,
    "U+FEFF in a content type": _mark_in_type,
    "U+0000 in a property": _null,
    "no UTF-8": _no_utf8,
    "control characters": _control,
    "topic of 64 KB": _long_topic,
    "name of 1 MB": _long_name,
    "forged answers": _forged,
    "U+FEFF in an answer": _poisoned_answer,
    "flood of resume requests": _resume_flood,
    "retained poison on presence": _retained,
    "QoS 2": _exactly_once,
    "invented devices": _invented,
    "invented signs of life": _invented_status,
    "malformed properties": _malformed,
    "no MQTT": _not_mqtt,
    "origin of push": _impostor,
    "payloads that are dear to parse": _bomb,
}
