"""Positions of the topics from which commands were moved, and the positions of their copies.

A position has a meaning in one topic of one cluster only. Devices keep positions, though, and resume from them after the
move. So a new cursors partition has, for each former partition, the runs of commands that lie one after the other in both
topics, and the secret that proves the former tags.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from bridge.contract.commands import CommandPosition
from bridge.contract.decoding import checked_position, checked_text, checked_whole, checked_wholes

__all__ = ["TRIMMED", "FormerPartition", "PositionRuns"]

TRIMMED: Final = CommandPosition(0, -1, -1)
"""Stands for each position before the first copy. It is after BEFORE_ALL, so that push reports what is missing."""
_WIDTH: Final = 6
"""Numbers of a run: ledger, entry and index of the first command; ledger and entry of its copy; count."""
_MOST: Final = 10_000
"""Runs in the record of a partition. Of more some are left out: then a device gets some commands before its position again, marked."""


class PositionRuns:
    """The positions of copies by those of their originals, both in the order of the log."""

    def __init__(self) -> None:
        self._runs: list[tuple[CommandPosition, CommandPosition, int]] = []
        self.last: CommandPosition | None = None
        """The last original, None without any."""

    def add(self, original: CommandPosition, copy: CommandPosition) -> None:
        """Add the next original and its unbatched copy. One that is not after the last is another copy of it: ignored."""
        if self.last is not None and original <= self.last:
            return
        self.last = original
        if self._runs:
            first, to, count = self._runs[-1]
            follows = original == first._replace(entry=first.entry + count, batch_index=-1)
            if first.batch_index == -1 and follows and copy[:2] == (to.ledger, to.entry + count):
                self._runs[-1] = first, to, count + 1
                return
        self._runs.append((original, copy, 1))

    def _at(self, original: CommandPosition) -> tuple[CommandPosition, CommandPosition] | None:
        """Return the last original at or before a position, and its copy."""
        at = bisect_right(self._runs, original, key=lambda run: run[0]) - 1
        if at < 0:
            return None
        first, to, count = self._runs[at]
        within = original.entry - first.entry if original.ledger == first.ledger else count
        within -= original.batch_index < -1  # before all of its entry
        step = min(within, count - 1)
        return first._replace(entry=first.entry + step), to._replace(entry=to.entry + step)

    def exactly(self, original: CommandPosition) -> CommandPosition | None:
        """Return the position of a command's copy, None if it has none."""
        found = self._at(original)
        return found[1] if found is not None and found[0] == original else None

    def up_to(self, original: CommandPosition) -> CommandPosition | None:
        """Return the position of the last copy whose original is at or before a position, None without one."""
        found = self._at(original)
        return None if found is None else found[1]

    def since(self, first: CommandPosition | None) -> PositionRuns:
        """Return the runs from ``first`` on, the first command of the log; none for None. What is before it, was relocated:
        other commands there are not in the log any more, and a device that resumes from there is to know."""
        runs = PositionRuns()
        runs._runs = [run for run in self._runs if first is not None and run[0] >= first]
        return runs

    def numbers(self, most: int) -> list[int]:
        """Return the runs as numbers, one after the other; if there are more than ``most``, some of them."""
        some = self._runs[:: len(self._runs) // most + 1]
        return [number for first, to, count in some for number in (*first, *to[:2], count)]

    @classmethod
    def of(cls, numbers: Sequence[int]) -> PositionRuns:
        """Read what ``numbers`` has returned. Called by a decoder of a record: it raises what it meets."""
        runs = cls()
        for at in range(0, len(numbers), _WIDTH):
            first = CommandPosition(*checked_position(numbers[at : at + 3]))
            to = CommandPosition(*checked_position((*numbers[at + 3 : at + 5], -1)))
            runs._runs.append((first, to, checked_whole(numbers[at + 5], 1)))
        runs._runs.sort()
        return runs


class FormerPartition(NamedTuple):
    """A partition from which commands were moved, as the partition with their copies knows it."""

    generation: int
    partition: int
    secret: bytes
    """Its secret."""
    runs: PositionRuns

    def here(self, position: CommandPosition) -> CommandPosition:
        """Return the position of the copies after which a device resumes that has everything up to ``position``."""
        return self.runs.up_to(position) or TRIMMED

    @staticmethod
    def fields(several: Sequence[FormerPartition]) -> list[dict[str, Any]]:
        """Return them as fields of a JSON record."""
        most = max(1, _MOST // max(1, len(several)))
        return [one._asdict() | {"secret": one.secret.hex(), "runs": one.runs.numbers(most)} for one in several]

    @classmethod
    def of_fields(cls, body: dict[str, Any]) -> FormerPartition:
        """Read one that ``fields`` has returned. Called by a decoder of a record: it raises what it meets."""
        secret = bytes.fromhex(checked_text(body["secret"]))
        numbers = checked_whole(body["generation"]), checked_whole(body["partition"])
        return cls(*numbers, secret, PositionRuns.of(checked_wholes(body["runs"], _WIDTH)))
