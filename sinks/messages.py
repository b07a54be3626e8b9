"""What a row of a task becomes, a message to Pulsar or a bad row, and whether a DataFrame's columns will do. Pure."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bridge.commands import Problem
from bridge.errors import ContractError

__all__ = ["BadRow", "PulsarMessage", "check_columns"]


@dataclass(frozen=True, slots=True)
class PulsarMessage:
    """A message for one topic; its key, or where it has none its row, decides the partition."""

    row: int
    """Its number within the task."""
    topic: str
    """Full name, without partition."""
    payload: bytes | None
    """None for a tombstone."""
    key: str | None
    properties: Mapping[str, str]
    event_ms: int = 0
    """Event time in ms since the epoch, 0 for none."""
    ordering_key: str | None = None

    def refused(self, problem: Problem) -> BadRow:
        """Return the bad row that this message is, for a reason that only Pulsar knows."""
        return BadRow(self.row, problem, self.payload or b"", self.key or "", self.topic, self.key, self.properties)


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be written: its number within the task, what is wrong, and what is known of it."""

    row: int
    problem: Problem
    payload: bytes
    device: str
    """Key of its dead letter."""
    topic: str = ""
    """Pulsar topic that it was meant for, empty for the one of the options."""
    key: str | None = None
    """The key that it was meant to have there, None where that is the device."""
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """The reason as it stands in the dead letter."""
        return f"row {self.row} of the task, {self.problem}"


def check_columns(
    name: str,
    columns: Iterable[tuple[str, str]],
    wanted: Mapping[str, Sequence[str]],
    required: Iterable[str],
    also: Mapping[str, Sequence[str]] | None = None,
    *,
    strangers: str = "",
) -> None:
    """Check a DataFrame's columns (name, Spark SQL type) against those that the format ``name`` wants.

    ``also`` are columns that may be there and are not written; ``strangers`` says where else an unknown one belongs.
    Raises ContractError that lists every missing, repeated, unknown and wrongly typed column with the remedy.
    """
    columns = list(columns)
    found = dict(columns)
    known = {**wanted, **(also or {})}
    problems = [f"column {one} ({' or '.join(wanted[one])}) is missing: add it" for one in required if one not in found]
    for one, times in Counter(one for one, _ in columns).items():
        if times > 1:
            problems.append(
                f"column {one} is there {times} times, and one of them would count: rename or drop the others"
            )
    for one, kind in found.items():
        if one not in known:
            near = difflib.get_close_matches(one, known, 1, 0.5)
            drop = strangers or "drop it"
            hint = f"did you mean {near[0]}? Else {drop}" if near else drop
            problems.append(f"column {one} is unknown: {hint}")
        elif kind not in known[one]:
            cast = f".withColumn('{one}', col('{one}').cast('{known[one][0]}'))"
            problems.append(f"column {one} is {kind}, wanted {' or '.join(known[one])}: {cast}")
    if problems:
        told = ", ".join(f"{one} {' or '.join(kinds)}" for one, kinds in wanted.items())
        raise ContractError(f"{name}: " + "; ".join(problems), remedy="columns: " + told)
