"""Records of the cursors topic: the cursors of devices, the ids apart from them, and what an owner writes of itself.

A cursor is one message of the compacted topic. All commands of the device at or below ``position`` are settled: delivered,
expired, a duplicate, or in the dead letters.

Its key has the device and the term of the owner that wrote it (``key_of_term``), so that a former owner whose write arrives
late replaces nothing of its successor. An owner writes what it has read of all terms, and removes the records of the others
behind that. A term is the position of the owner's first record in the partition. So the term shows which records the owner
has read: those before it.

Push writes the cursor for each command, and the ids are by far its largest part. So the cursor has the latest ids alone; the
others are in a record apart (``ids_key``). Push writes that record before the cursor that leaves them out, and the record
names no id that no cursor has named before. After a crash in between some ids are in both, and no id is known without the
rest of its cursor.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from operator import sub
from typing import Any, Final, NamedTuple

from bridge.contract import CURSOR_VERSION
from bridge.contract.commands import BEFORE_ALL, CommandPosition
from bridge.contract.decoding import (
    LAST_US,
    checked_position,
    checked_text,
    checked_whole,
    checked_wholes,
    decodes,
    json_record,
)
from bridge.contract.former_positions import FormerPartition
from bridge.contract.segments import ParkedId
from bridge.contract.tagged_positions import SECRET_BYTES
from bridge.errors import ContractError

__all__ = [
    "DAYS",
    "MAX_UNPROVEN",
    "MORE",
    "OWNER_KEY",
    "TERM_KEY",
    "CursorRecord",
    "OwnerRecord",
    "PlainCursor",
    "RememberedIds",
    "Term",
    "Unproven",
    "ids_device",
    "ids_key",
    "is_plain_ids",
    "key_of_term",
    "plain_confirmation",
    "plain_cursor",
    "read_term",
    "split_key",
    "term_name",
    "term_position",
    "term_record",
]

OWNER_KEY: Final = "\0owner"
"""Key of the owner's own record in a cursors partition; no device is called so, MQTT topics have no U+0000."""

TERM_KEY: Final = "\0term"
"""Key of the record of what owners take over from each other. Each owner has its own, as of a cursor."""

_IDS_PREFIX: Final = "\0ids\0"
_OWNER_VERSION: Final = 1
_TERM_VERSION: Final = 1

MAX_UNPROVEN: Final = 16
"""So many commands of a device that the broker confirmed are remembered in case they did not arrive (H26)."""


MORE: Final = 16
DAYS: Final = 7

_SIZE: Final = 9
"""Bytes of a digest: among 4,096 ids a false match comes once in 10^18 commands, and a record stays small."""
_MOST: Final = MORE * 4096
"""As many as ``push.limits.remembered_ids`` lets a cursor have."""
_DAY_US: Final = 86_400_000_000


_VERSION: Final = str(CURSOR_VERSION).encode()
_NUMBERS: Final = rb"\[(?:-?\d{1,18}(?:,-?\d{1,18})*)?\]"
_IDS: Final = rb'"ids":"(?:[A-Za-z0-9+/]{12})*"(?:,"dead":' + _NUMBERS + rb')?(?:,"days":' + _NUMBERS + rb")?"
_PLAIN: Final = re.compile(
    rb'\{"v":' + _VERSION + rb',"position":\[(-?\d{1,18}),(-?\d{1,18}),(-?\d{1,9})\],' + _IDS
    + rb'(,"lately":' + _NUMBERS + rb')?(,"back":1)?(?:,"at":(\d{1,15}))?'
    + rb'(?:,"link":"[ !#-\[\]-~]*"(?:,"link_at":\d{1,17})?)?\}'
)  # fmt: skip
_PLAIN_IDS: Final = re.compile(rb'\{"v":' + _VERSION + b"," + _IDS + rb"\}")


class PlainCursor(NamedTuple):
    """What is read of a cursor that is decoded later."""

    position: tuple[int, int, int]
    online: bool
    """As in ``Cursor``."""


def plain_cursor(payload: bytes) -> PlainCursor | None:
    """Return what a cursor has if it is as push writes most of them: nothing is sent again, and nothing is uncertain. None
    for any other record.
    """
    found = _PLAIN.fullmatch(payload)
    if found is None:
        return None
    ledger, entry, index, _, back, _ = found.groups()
    return PlainCursor((int(ledger), int(entry), int(index)), back is not None)


def plain_confirmation(payload: bytes) -> int | None:
    """Return when the broker confirmed the last command that it alone confirmed, in ms since the epoch; 0 without one.
    None for a record that is not plain, as ``plain_cursor``.
    """
    found = _PLAIN.fullmatch(payload)
    if found is None:
        return None
    return int(found[6] or LAST_US // 1000) if found[4] else 0


def is_plain_ids(payload: bytes) -> bool:
    """Return whether a record is as push writes ids apart from a cursor, which can be decoded later."""
    return _PLAIN_IDS.fullmatch(payload) is not None


class Unproven(NamedTuple):
    """A command that the broker confirmed at ``at_us``, as it is parked should the device turn out to be away."""

    one: ParkedId
    at_us: int


def key_of_term(key: str, term: str) -> str:
    """Return the key of an owner's record: ``key`` and the name of its term. Without a term, as in a partition to which
    commands were moved, it is ``key``, and the record counts as the oldest.
    """
    return f"{key}\0{term}" if term else key


def split_key(key: str) -> tuple[str, str]:
    """Return key and term of ``key_of_term``, for the key of a cursor, of ids, or of a term."""
    at = key.find("\0", 1 + (len(_IDS_PREFIX) if key.startswith(_IDS_PREFIX) else 0))
    return (key, "") if at < 0 else (key[:at], key[at + 1 :])


def term_name(position: CommandPosition) -> str:
    """Return the name of the term of an owner whose first record is at ``position``."""
    return f"{position.ledger:x}.{position.entry:x}"


@decodes("the name of a term")
def term_position(name: str) -> tuple[int, int]:
    """Return ledger and entry of an owner's first record; of no term what is before all. Raises ContractError."""
    if not name:
        return BEFORE_ALL[:2]
    ledger, entry = name.split(".")
    return checked_position((int(ledger, 16), int(entry, 16), -1))[:2]


def ids_key(device: str) -> str:
    """Return the key of the ids that are stored apart from a device's cursor."""
    return _IDS_PREFIX + device


def ids_device(key: str) -> str | None:
    """Return whose ids are stored under ``key``, None when it is no such key."""
    return split_key(key)[0].removeprefix(_IDS_PREFIX) if key.startswith(_IDS_PREFIX) else None


class RememberedIds:
    """The ids of one device, as digests side by side: there may be thousands of each of many devices.

    The latest ids are remembered at any age, and ``MORE`` times as many if they are at most ``DAYS`` older than the
    newest: a task, a batch or a new checkpoint may write again all that a device had in the time that Pulsar keeps. The
    ids themselves give the age, not a clock, so that nothing of a silent device is forgotten.
    """

    __slots__ = ("_dead", "_digests", "_least", "_runs")

    def __init__(self, least: int) -> None:
        """``least``: so many are remembered whatever their age; with 0 none is."""
        self._least = least
        # Nothing of its own for the many devices that never had a command.
        self._digests: bytearray | bytes = b""  # the oldest first
        self._runs: list[list[int]] | tuple[()] = ()  # how many of them in turn are of which day
        self._dead: set[bytes] | tuple[()] = ()

    def __len__(self) -> int:
        return len(self._digests) // _SIZE

    def knows(self, command_id: str) -> bool:
        """Return whether the id is remembered."""
        return self._has(_digest(command_id))

    def delivered(self, command_id: str) -> bool:
        """Return whether the id is remembered as one that the device had, not as a dead letter."""
        digest = _digest(command_id)
        return digest not in self._dead and self._has(digest)

    def add(self, command_id: str, *, delivered: bool, at_us: int) -> bool:
        """Remember an id, settled at ``at_us`` (µs since the epoch, 0: as the one before). Returns whether it is new."""
        return self._add(_digest(command_id), delivered, at_us // _DAY_US)

    def merge(self, other: RememberedIds) -> int:
        """Remember what another of the same device does, as the newest. Returns how many were not known."""
        return sum(self._add(*one) for one in other._all())

    def put_before(self, older: RememberedIds) -> None:
        """Put what another of the same device remembers before what this one does."""
        for one in self._all():
            older._add(*one)
        self._digests, self._runs, self._dead = older._digests, older._runs, older._dead

    def _all(self) -> Iterator[tuple[bytes, bool, int]]:
        start = 0
        for count, day in self._runs:
            for at in range(start, start + count * _SIZE, _SIZE):
                digest = bytes(self._digests[at : at + _SIZE])
                yield digest, digest not in self._dead, day
            start += count * _SIZE

    def _has(self, digest: bytes) -> bool:
        at = self._digests.find(digest)
        while at % _SIZE and at >= 0:  # it began in the midst of another
            at = self._digests.find(digest, at + 1)
        return at >= 0

    def _add(self, digest: bytes, delivered: bool, day: int) -> bool:
        if self._has(digest):
            return False
        self._digests = self._digests or bytearray()
        self._digests += digest
        self._runs = self._runs or []
        newest = self._runs[-1] if self._runs else None
        if newest is not None and newest[1] >= day:
            newest[0] += 1
        else:
            self._runs.append([1, day])
        if not delivered:
            self._dead = self._dead or set()
            self._dead.add(digest)
        self._forget()
        return True

    def _forget(self) -> None:
        """Forget the oldest ones where there are too many of them."""
        runs = self._runs
        assert isinstance(self._digests, bytearray)
        assert isinstance(runs, list)
        while (
            len(self) > MORE * self._least or (len(self) > self._least and runs[-1][1] - runs[0][1] > DAYS)
        ):  # fmt: skip
            if self._dead:
                self._dead.discard(bytes(self._digests[:_SIZE]))
            del self._digests[:_SIZE]
            runs[0][0] -= 1
            if not runs[0][0]:
                del runs[0]

    def fields(self, start: int, stop: int) -> dict[str, object]:
        """Return some of them, counted from the oldest, as fields of a JSON record: ``ids`` has the digests side by side
        in base64, ``dead`` the numbers of those that went to the dead letters. ``days`` has, in turn, how many are of one
        day, and how many days that is after the one before, the first after the epoch.
        """
        start, stop = max(0, start), min(len(self), stop)
        digests = bytes(self._digests[start * _SIZE : stop * _SIZE])
        fields: dict[str, object] = {"ids": base64.b64encode(digests).decode("ascii")}
        if self._dead:
            fields["dead"] = [n for n, digest in enumerate(_split(digests)) if digest in self._dead]
        days: list[int] = []
        before = passed = 0
        for count, day in self._runs:
            some = min(stop, passed + count) - max(start, passed)
            passed += count
            if some > 0:
                days += (some, day - before)
                before = day
        if before:
            fields["days"] = days
        return fields

    @classmethod
    def of_fields(cls, body: dict[str, Any], least: int) -> RememberedIds:
        """Read what ``fields`` has returned; without ``days`` the ids are of unknown age. Called by a decoder of a record
        (``bridge.contract.decoding``): it raises what it meets.
        """
        found = cls(least)
        digests = base64.b64decode(checked_text(body["ids"]), validate=True)
        count, rest = divmod(len(digests), _SIZE)
        if rest:
            raise ValueError("ids of another length")
        if count > _MOST:
            raise ValueError(f"{count} ids, a device has at most {_MOST}")
        days = _days(body.get("days", [count, 0]), count)
        dead = set(checked_wholes(body.get("dead", []), 1))
        for number, (digest, day) in enumerate(zip(_split(digests), days, strict=True)):
            found._add(digest, number not in dead, day)
        return found

    def encode(self, start: int, stop: int) -> bytes:
        """Return some of them, counted from the oldest, as the payload of their own record."""
        return _dumped({"v": CURSOR_VERSION} | self.fields(start, stop))

    @classmethod
    @decodes("the ids of commands")
    def decode(cls, payload: bytes, least: int) -> RememberedIds:
        """Read what ``encode`` has returned. Raises ContractError for a payload of another version."""
        return cls.of_fields(_body(payload, CURSOR_VERSION), least)


class CursorRecord(NamedTuple):
    """What the record of a device's cursor has. ``bridge.push.cursor`` decides what follows from it."""

    position: CommandPosition
    ids: RememberedIds
    """Settled command ids: in the record the latest ones."""
    resend_from: CommandPosition | None
    """Parked commands above it are to be sent although they are below ``position``: the broker had them, and the device
    perhaps not (H26). None: all that is parked is above ``position``."""
    resend: list[ParkedId]
    """These commands, until they are sent: their segments may not be stored when the owner dies."""
    unproven: list[Unproven]
    """What the broker confirmed lately without a sign of life of the device since: the last ``MAX_UNPROVEN``, in order."""
    delivered_at_ms: int
    """When the device's last command was confirmed, in ms since the epoch; 0 if none was, or unknown."""
    online: bool
    """The device gave a sign of life after its commands were parked, and no sign of absence since: an owner that dies
    while it sends them leaves the rest to the next one."""
    maybe_seen_to: CommandPosition | None
    """The device may have received everything up to there, however low ``position`` is: a former owner wrote this cursor
    late, and the records of its successor are lost (H23). None: nothing is uncertain."""
    link: str = ""
    """The MQTT broker where the device was last seen, as the name of a link; empty if unknown, or with one broker."""
    link_at_us: int = 0
    """Its last sign of life there, in µs since the epoch; 0 if it is not known when that was."""

    def encode(self, from_id: int = 0) -> bytes:
        """Return the JSON payload, without the ids before number ``from_id``, which are stored apart."""
        body: dict[str, object] = {"v": CURSOR_VERSION, "position": list(self.position)}
        body |= self.ids.fields(from_id, len(self.ids))
        if self.resend_from is not None:
            body["again_from"] = list(self.resend_from)
        if self.resend:
            body["again"] = [number for one in self.resend for number in (*one.position, one.expires_at_ms)]
        if self.unproven:
            flat = [number for one, at_us in self.unproven for number in (*one.position, one.expires_at_ms, at_us)]
            body["lately"] = _differences(flat, 5)
        if self.online:
            body["back"] = 1
        if self.maybe_seen_to is not None:
            body["had_to"] = list(self.maybe_seen_to)
        if self.delivered_at_ms:
            body["at"] = self.delivered_at_ms
        if self.link:
            body["link"] = self.link
        if self.link and self.link_at_us:
            body["link_at"] = self.link_at_us
        return _dumped(body)

    @classmethod
    @decodes("a command cursor")
    def decode(cls, payload: bytes, capacity: int) -> CursorRecord:
        """Read a cursor back; ``capacity`` ids are remembered at any age. Raises ContractError for another version."""
        body = _body(payload, CURSOR_VERSION)
        lately = _summed(_tuples(body.get("lately", []), 5))
        return cls(
            position=CommandPosition(*checked_position(body["position"])),
            ids=RememberedIds.of_fields(body, capacity),
            resend_from=_position(body, "again_from"),
            resend=[_again(*numbers) for numbers in _tuples(body.get("again", []), 4)],
            unproven=[Unproven(_again(*one[:4]), checked_whole(one[4])) for one in lately][-MAX_UNPROVEN:],
            delivered_at_ms=checked_whole(body.get("at", 0), 0, LAST_US // 1000),
            online=body.get("back") == 1,
            maybe_seen_to=_position(body, "had_to"),
            link=checked_text(body.get("link", "")),
            link_at_us=checked_whole(body.get("link_at", 0), 0, LAST_US),
        )


@dataclass(frozen=True, slots=True)
class OwnerRecord:
    """What an owner writes into its cursors partition: at takeover, at each reconnect, and when it leaves.

    Its receipt proves that Pulsar has not fenced the owner; reading up to it proves that all cursors were read. ``token``
    names the session, ``serial`` counts its records. ``clean``: no command was sent whose cursor is not stored. ``idle``:
    the session has sent nothing so far, so the record of the owner before still counts.
    """

    token: str
    serial: int
    clean: bool = False
    idle: bool = False

    def encode(self) -> bytes:
        """Return the record as the JSON payload of its message."""
        body = {"v": _OWNER_VERSION, "owner": self.token, "serial": self.serial, "clean": self.clean}
        return _dumped(body | {"idle": True} if self.idle else body)

    @classmethod
    @decodes("the record of an owner")
    def decode(cls, payload: bytes) -> OwnerRecord:
        """Read a record back. Raises ContractError when the payload is not one of this version."""
        body = _body(payload, _OWNER_VERSION)
        owner, serial = checked_text(body["owner"]), checked_whole(body.get("serial", 0))
        return cls(owner, serial, body.get("clean") is True, body.get("idle") is True)


class Term(NamedTuple):
    """What owners take over from each other."""

    secret: bytes
    """The partition's, which proves the tags of its positions; empty before the first term."""
    former: tuple[FormerPartition, ...] = ()
    """The partitions from which the commands were moved, none if they were not."""


def term_record(term: Term) -> bytes:
    """Return the payload under ``TERM_KEY``."""
    body: dict[str, object] = {"v": _TERM_VERSION, "term": 1, "secret": term.secret.hex()}
    if term.former:
        body["former"] = FormerPartition.fields(term.former)
    return _dumped(body)


@decodes("the beginning of a term and its secret")
def read_term(payload: bytes) -> Term:
    """Read what ``term_record`` has returned. Raises ContractError for a payload of another version."""
    body = _body(payload, _TERM_VERSION)
    secret = bytes.fromhex(checked_text(body["secret"]))
    if len(secret) != SECRET_BYTES:
        raise ContractError(f"the secret of a term has {len(secret)} bytes, not {SECRET_BYTES}")
    return Term(secret, tuple(map(FormerPartition.of_fields, body.get("former", []))))


def _position(body: dict[str, Any], name: str) -> CommandPosition | None:
    return CommandPosition(*checked_position(body[name])) if name in body else None


def _again(ledger: int, entry: int, index: int, expires_at_ms: int) -> ParkedId:
    position = CommandPosition(*checked_position((ledger, entry, index)))
    return ParkedId(position, checked_whole(expires_at_ms), maybe_seen=True, resend=True)


def _tuples(flat: object, width: int) -> list[tuple[int, ...]]:
    numbers = checked_wholes(flat, width)
    return [tuple(numbers[at : at + width]) for at in range(0, len(numbers), width)]


def _differences(flat: list[int], width: int) -> list[int]:
    """Return each row of ``width`` numbers less the one before: what is alike in them takes a digit each."""
    return [*flat[:width], *map(sub, flat[width:], flat)]


def _summed(rows: list[tuple[int, ...]]) -> Iterable[tuple[int, ...]]:
    """Return the rows whose ``_differences`` these are."""
    return accumulate(rows, lambda one, more: tuple(of + by for of, by in zip(one, more, strict=True)))


def _dumped(body: dict[str, object]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def _body(payload: bytes, version: int) -> dict[str, Any]:
    return json_record(payload, "command cursor", (version,))


def _days(runs: list[int], count: int) -> list[int]:
    days: list[int] = []
    day = 0
    for some, later in zip(runs[::2], runs[1::2], strict=True):
        day += checked_whole(later)
        days += [day] * checked_whole(some, 0, count - len(days))
    if len(days) != count:
        raise ValueError(f"days of {len(days)} ids, there are {count}")
    return days


def _split(digests: bytes) -> list[bytes]:
    return [digests[at : at + _SIZE] for at in range(0, len(digests), _SIZE)]


def _digest(command_id: str) -> bytes:
    return hashlib.sha256(command_id.encode("utf-8", "surrogatepass")).digest()[:_SIZE]
