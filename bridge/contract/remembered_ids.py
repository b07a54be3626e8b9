"""The ids of the commands that a device had lately, as digests: in its cursor, and in a record of their own."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from typing import Any, Final

from bridge.contract import CURSOR_VERSION
from bridge.contract.decoding import checked_whole, decodes, json_record

__all__ = ["DAYS", "MORE", "RememberedIds"]

MORE: Final = 16
DAYS: Final = 7

_SIZE: Final = 9
"""Bytes of a digest: among 4,096 ids a false match comes once in 10^18 commands, and a record stays small."""
_TEXT: Final = 12
"""Characters of it in base64."""
_MOST: Final = MORE * 4096
"""As many as ``push.limits.remembered_ids`` lets a cursor have."""
_DEAD: Final = "!"
"""Before the digest of a command that went to the dead letters; base64 has no such sign."""
_DAY_US: Final = 86_400_000_000


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
        """Return some of them, counted from the oldest, as fields of a JSON record. ``days`` has, in turn, how many are
        of one day, and how many days that is after the one before, the first after the epoch.
        """
        start, stop = max(0, start), min(len(self), stop)
        text = base64.b64encode(self._digests[start * _SIZE : stop * _SIZE]).decode("ascii")
        ids = [text[at : at + _TEXT] for at in range(0, len(text), _TEXT)]
        if self._dead:
            ids = [_DEAD + one if base64.b64decode(one) in self._dead else one for one in ids]
        days: list[int] = []
        before = passed = 0
        for count, day in self._runs:
            some = min(stop, passed + count) - max(start, passed)
            passed += count
            if some > 0:
                days += (some, day - before)
                before = day
        return {"ids": ids, "days": days} if before else {"ids": ids}

    @classmethod
    def of_fields(cls, body: dict[str, Any], least: int) -> RememberedIds:
        """Read what ``fields`` has returned; without ``days`` the ids are of unknown age. Called by a decoder of a record
        (``bridge.contract.decoding``): it raises what it meets.
        """
        found = cls(least)
        ids: list[str] = body["ids"]
        if len(ids) > _MOST:
            raise ValueError(f"{len(ids)} ids, a device has at most {_MOST}")
        days = _days(body.get("days", [len(ids), 0]), len(ids))
        digests = base64.b64decode("".join([one.removeprefix(_DEAD) for one in ids]), validate=True)
        if len(digests) != len(ids) * _SIZE:
            raise ValueError("ids of another length")
        for number, (one, day) in enumerate(zip(ids, days, strict=True)):
            found._add(digests[number * _SIZE : (number + 1) * _SIZE], not one.startswith(_DEAD), day)
        return found

    def encode(self, start: int, stop: int) -> bytes:
        """Return some of them, counted from the oldest, as the payload of their own record."""
        body = {"v": CURSOR_VERSION} | self.fields(start, stop)
        return json.dumps(body, separators=(",", ":")).encode()

    @classmethod
    @decodes("the ids of commands")
    def decode(cls, payload: bytes, least: int) -> RememberedIds:
        """Read what ``encode`` has returned. Raises ContractError for a payload of another version."""
        return cls.of_fields(json_record(payload, "command cursor", (CURSOR_VERSION,)), least)


def _days(runs: list[int], count: int) -> list[int]:
    days: list[int] = []
    day = 0
    for some, later in zip(runs[::2], runs[1::2], strict=True):
        day += checked_whole(later)
        days += [day] * checked_whole(some, 0, count - len(days))
    if len(days) != count:
        raise ValueError(f"days of {len(days)} ids, there are {count}")
    return days


def _digest(command_id: str) -> bytes:
    return hashlib.sha256(command_id.encode("utf-8", "surrogatepass")).digest()[:_SIZE]
