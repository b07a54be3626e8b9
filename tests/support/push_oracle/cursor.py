"""A device's cursor: up to where its commands are settled, and which command ids it has had lately.

Pure. A cursor is one message of the compacted cursors topic, keyed by device; the last one counts. All commands of
the device at or below ``position`` are settled: delivered, expired, a repetition, or in the dead letters.

It is written for each command, and the ids in it are by far its largest part. So it has the latest ones alone; the others
stand in a record apart (``ids_key``), which is written before the cursor that leaves them out, and names none that no
cursor has named before: died in between, some are in both, and no id is known without what else its cursor says.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, chain
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
from bridge.errors import ContractError
from tests.support.push_oracle.parked import ParkedId
from tests.support.push_oracle.position_tags import SECRET_BYTES
from tests.support.push_oracle.remembered import RememberedIds

__all__ = [
    "BEFORE_ALL",
    "OWNER_KEY",
    "SURE",
    "TERM_KEY",
    "Cursor",
    "OwnerRecord",
    "Sure",
    "ids_device",
    "ids_key",
    "read_term",
    "term_record",
]

OWNER_KEY: Final = "\0owner"
"""Key of the owner's own record in a cursors partition; no device is called so, MQTT topics have no U+0000."""

TERM_KEY: Final = "\0term"
"""Key of the record with which an owner begins: behind it nobody else has a word, and what stands there of another is late.

It is not the record under ``OWNER_KEY``: that one a former owner writes as well, when it looks whether it was replaced.
"""

_IDS_PREFIX: Final = "\0ids\0"
_READ: Final = (1, CURSOR_VERSION)
_OWNER_VERSION: Final = 1
_TERM_VERSION: Final = 1

SURE: Final = 16
"""So many commands of a device that the broker confirmed are remembered in case they did not arrive (H26)."""


class Sure(NamedTuple):
    """A command that the broker confirmed at ``at_us``, as it is parked should the device turn out to be away."""

    one: ParkedId
    at_us: int


def ids_key(device: str) -> str:
    """Return the key of the ids that stand apart from a device's cursor."""
    return _IDS_PREFIX + device


def ids_device(key: str) -> str | None:
    """Return whose ids are stored under ``key``, None when it is no such key."""
    return key.removeprefix(_IDS_PREFIX) if key.startswith(_IDS_PREFIX) else None


def _again(ledger: int, entry: int, index: int, expires_at_ms: int) -> ParkedId:
    position = CommandPosition(*checked_position((ledger, entry, index)))
    return ParkedId(position, checked_whole(expires_at_ms), maybe_seen=True, unsure=True)


def _tuples(flat: object, width: int) -> list[tuple[int, ...]]:
    numbers = checked_wholes(flat, width)
    return [tuple(numbers[at : at + width]) for at in range(0, len(numbers), width)]


class Cursor:
    """The cursor of one device. It remembers the last ``capacity`` settled ids and more of the last days, see
    ``bridge.push.remembered``.
    """

    __slots__ = (
        "_fresh",
        "_ids",
        "_unnamed",
        "_written",
        "again",
        "again_from",
        "back",
        "capacity",
        "delivered_at_ms",
        "had_to",
        "position",
        "sure",
    )

    def __init__(self, capacity: int, position: CommandPosition = BEFORE_ALL) -> None:
        self.capacity = capacity
        self.position = position
        self.again_from: CommandPosition | None = None
        """Parked commands above it are still to be pushed although they are below ``position``: the broker had
        them, and the device perhaps not (H26). None: what is parked is above ``position``."""
        self.again: list[ParkedId] = []
        """Those of them, until they are pushed: their segments may not be stored when the owner dies."""
        self.sure: list[Sure] = []
        """What the broker confirmed lately without a sign of life of the device since: the last ``SURE``, in order."""
        self._written = False
        self.delivered_at_ms = 0
        """When the device's last command was confirmed, in ms since the epoch; 0 where none was, or nobody noted it."""
        self.back = False
        """The device was heard of after its commands were parked, and has not gone again: an owner that dies while it
        sends them leaves that to the next."""
        self.had_to: CommandPosition | None = None
        """The device may have had everything up to there, however far ``position`` is behind: a former owner wrote this
        cursor late, and what its successor settled is not known any more (H23). None: nothing is unclear."""
        self._ids = RememberedIds(capacity)
        self._fresh = 0  # so many of the last ones stand in no record apart
        self._unnamed = 0  # so many of the last ones were in no record yet

    def knows(self, command_id: str) -> bool:
        """Return whether this command was settled lately: the device had it, or it is in the dead letters."""
        return self._ids.knows(command_id)

    def delivered(self, command_id: str) -> bool:
        """Return whether the device had this command lately."""
        return self._ids.delivered(command_id)

    @property
    def done(self) -> CommandPosition:
        """Parked commands at or below it need no push any more."""
        return self.position if self.again_from is None else self.again_from

    @property
    def says_anything(self) -> bool:
        """Whether it says more than a new one, or has a record that is to stand no longer than the others."""
        said = self.position > BEFORE_ALL or self.again_from is not None or bool(self._ids) or self.back
        return said or self._written

    def may_have_had(self, position: CommandPosition) -> bool:
        """Whether a successor of whoever wrote this cursor may have sent the command at ``position``."""
        return self.had_to is not None and position <= self.had_to

    def pass_over(self, position: CommandPosition) -> None:
        """Move to ``position``: whatever is at or below it needs no push any more."""
        self.position = max(self.position, position)
        if self.again_from is not None:
            self.again_from = position if self.again_from < position < self.position else self.again_from
            if position >= self.position:
                self.again_from = None
            self.again = [one for one in self.again if self.again_from and one.position > self.again_from]

    def go_back(self, again: list[ParkedId]) -> None:
        """These are to be pushed once more; they are parked, in order, and what is parked comes behind them."""
        before = again[0].position
        self.again_from = before._replace(batch_index=before.batch_index - 1)
        self.again = again

    def replay_from(self, first: CommandPosition | None) -> None:
        """Parked commands from ``first`` on are to be pushed once more, and no others; their segments are stored before
        this cursor is. None: none of them.
        """
        self.again = []
        self.again_from = None if first is None else first._replace(batch_index=first.batch_index - 1)

    def seen(self, at_us: int) -> None:
        """The device gave a sign of life: what was confirmed until then has arrived."""
        gone = next((n for n, one in enumerate(self.sure) if one.at_us > at_us), len(self.sure))
        del self.sure[:gone]

    def trust(self, one: Sure) -> None:
        """The broker confirmed a command."""
        self.sure.append(one)
        del self.sure[:-SURE]

    def settle(self, position: CommandPosition, command_id: str, *, delivered: bool, at_us: int = 0) -> None:
        """Move to ``position`` and remember the id: a repetition of it is not for the device. ``at_us``: when it was
        delivered.
        """
        self.pass_over(position)
        if delivered:
            self.delivered_at_ms = max(self.delivered_at_ms, at_us // 1000)
        self._note_new(self._ids.add(command_id, delivered=delivered, at_us=at_us))

    def _note_new(self, count: int) -> None:
        self._fresh += count
        self._unnamed += count

    def merge(self, other: Cursor) -> None:
        """Take over what ``other``, a record of the same device, knows beyond this one. Where commands are to be pushed
        once more, the position stays with them.
        """
        if self.again_from is None:
            self.position = max(self.position, other.position)
        self.delivered_at_ms = max(self.delivered_at_ms, other.delivered_at_ms)
        self.had_to = max((one for one in (self.had_to, other.had_to) if one is not None), default=None)
        self.sure = sorted({*self.sure, *other.sure})[-SURE:]
        self._note_new(self._ids.merge(other._ids))

    def records(self, device: str, *, whole: bool = False, all_keys: bool = False) -> tuple[tuple[str, bytes], ...]:
        """Return keys and payloads of what is to be written now, in this order; the last one is the cursor itself.

        Ids that cursors named before come first once there are so many that a record apart costs less than to write
        them with each cursor; ``whole``: the cursor has them all, as Pulsar may not have those that were written before;
        ``all_keys``: no record of this device that was written before is needed any more.
        """
        apart: tuple[tuple[str, bytes], ...] = ()
        if whole:
            self._fresh = len(self._ids)
        elif all_keys or self._fresh > math.isqrt(2 * max(self.capacity, len(self._ids))):
            named = self._ids.told(0, len(self._ids) - self._unnamed)
            apart = ((ids_key(device), _dumped({"v": CURSOR_VERSION} | named)),)
            self._fresh = self._unnamed
        self._unnamed = 0
        self._written = True
        return (*apart, (device, self.encode()))

    def encode(self) -> bytes:
        """Return the cursor as the JSON payload of its message, without the ids that stand apart."""
        body: dict[str, object] = {"v": CURSOR_VERSION, "position": list(self.position)}
        body |= self._ids.told(len(self._ids) - self._fresh, len(self._ids))
        if self.again_from is not None:
            body["again_from"] = list(self.again_from)
        if self.again:
            body["again"] = [number for one in self.again for number in (*one.position, one.expires_at_ms)]
        if self.sure:
            body["lately"] = _differences([(*s.one.position, s.one.expires_at_ms, s.at_us) for s in self.sure])
        if self.back:
            body["back"] = 1
        if self.had_to is not None and self.done < self.had_to:
            body["had_to"] = list(self.had_to)
        if self.delivered_at_ms:
            body["at"] = self.delivered_at_ms
        return _dumped(body)

    @decodes("the ids of commands")
    def with_ids(self, payload: bytes) -> None:
        """Take over the ids of a record apart, which are older than those that stand in the cursor. Raises ContractError
        when the payload is none of this version.
        """
        older = RememberedIds.taken(_body(payload, CURSOR_VERSION), self.capacity)
        self._fresh = min(self._fresh, len(self._ids))
        self._ids.behind(older)

    @classmethod
    @decodes("a command cursor")
    def decode(cls, payload: bytes, capacity: int) -> Cursor:
        """Read a cursor back. Raises ContractError when the payload is not one of these versions."""
        body = _body(payload, *_READ)
        cursor = cls(capacity, CommandPosition(*checked_position(body["position"])))
        if "again_from" in body:
            cursor.again_from = CommandPosition(*checked_position(body["again_from"]))
        cursor.again = [_again(*numbers) for numbers in _tuples(body.get("again", []), 4)]
        lately = _summed(_tuples(body.get("lately", []), 5))
        for numbers in chain(_tuples(body.get("sure", []), 5), lately):  # in version 1 each by itself
            cursor.trust(Sure(_again(*numbers[:4]), checked_whole(numbers[4])))
        cursor.back = body.get("back") == 1
        if "had_to" in body:
            cursor.had_to = CommandPosition(*checked_position(body["had_to"]))
        cursor.delivered_at_ms = checked_whole(body.get("at", 0), 0, LAST_US // 1000)
        cursor._ids = RememberedIds.taken(body, capacity)
        cursor._fresh = len(cursor._ids)
        cursor._written = True
        return cursor


@dataclass(frozen=True, slots=True)
class OwnerRecord:
    """What an owner writes into its cursors partition: at takeover, at each reconnect, and when it leaves.

    Its receipt proves that Pulsar has not fenced us; reading up to our own one proves that all cursors were read.
    ``token`` names the session, ``serial`` counts its records. ``clean`` tells the next owner that nothing was
    pushed without its cursor being stored.
    """

    token: str
    serial: int
    clean: bool = False

    def encode(self) -> bytes:
        """Return the record as the JSON payload of its message."""
        body = {"v": _OWNER_VERSION, "owner": self.token, "serial": self.serial, "clean": self.clean}
        return _dumped(body)

    @classmethod
    @decodes("the record of an owner")
    def decode(cls, payload: bytes) -> OwnerRecord:
        """Read a record back. Raises ContractError when the payload is not one of this version."""
        body = _body(payload, _OWNER_VERSION)
        owner, serial = checked_text(body["owner"]), checked_whole(body.get("serial", 0))
        return cls(owner, serial, body.get("clean") is True)


def term_record(secret: bytes) -> bytes:
    """Return the payload under ``TERM_KEY``: who begins is told by the name of the producer that writes it. ``secret`` is
    the partition's, which each owner takes over from the one before (``position_tags``).
    """
    return _dumped({"v": _TERM_VERSION, "term": 1, "secret": secret.hex()})


@decodes("the beginning of a term and its secret")
def read_term(payload: bytes) -> bytes:
    """Return the secret that stands under ``TERM_KEY``. Raises ContractError for a payload of another version."""
    secret = bytes.fromhex(checked_text(_body(payload, _TERM_VERSION)["secret"]))
    if len(secret) != SECRET_BYTES:
        raise ContractError(f"the secret of a term has {len(secret)} bytes, not {SECRET_BYTES}")
    return secret


def _differences(rows: list[tuple[int, ...]]) -> list[int]:
    """Return each row less the one before: what is alike in them takes a digit each."""
    before = [(0,) * len(rows[0]), *rows]
    return [to - of for one, next_ in zip(before, rows, strict=False) for of, to in zip(one, next_, strict=True)]


def _summed(rows: list[tuple[int, ...]]) -> Iterable[tuple[int, ...]]:
    """Return the rows whose ``_differences`` these are."""
    return accumulate(rows, lambda one, more: tuple(of + by for of, by in zip(one, more, strict=True)))


def _dumped(body: dict[str, object]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def _body(payload: bytes, *versions: int) -> dict[str, Any]:
    return json_record(payload, "command cursor", versions)
