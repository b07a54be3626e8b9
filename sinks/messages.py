"""Results of a row of a task: a Pulsar message or a bad row. Also checks a DataFrame's columns."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bridge.contract.commands import Problem
from bridge.errors import ContractError

__all__ = ["BadRow", "PulsarMessage", "check_columns"]


@dataclass(frozen=True, slots=True)
class PulsarMessage:
    """A message for one topic. Its key decides the partition; without a key, its row does."""

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
        """Return this message as a bad row, for a reason that only Pulsar reports."""
        return BadRow(self.row, problem, self.payload or b"", self.key or "", self.topic, self.key, self.properties)


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be written: its number, the problem, and its known values."""

    row: int
    problem: Problem
    payload: bytes
    device: str
    """Key of its dead letter."""
    topic: str = ""
    """Its Pulsar topic, empty for the topic of the options."""
    key: str | None = None
    """Its key in that topic, None if that is the device."""
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """The reason, as in the dead letter."""
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
    """Check a DataFrame's columns (name, Spark SQL type) against those of the format ``name``.

    ``also`` are columns that may exist and are not written; ``strangers`` is the remedy for an unknown column.
    Raises ContractError that lists every missing, repeated, unknown and wrongly typed column with the remedy.
    """
    columns = list(columns)
    found = dict(columns)
    known = {**wanted, **(also or {})}
    problems = [f"column {one} ({' or '.join(wanted[one])}) is missing: add it" for one in required if one not in found]
    for one, times in Counter(one for one, _ in columns).items():
        if times > 1:
            problems.append(
                f"column {one} occurs {times} times, and the sink would use one of them: rename or drop the others"
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
        expected = ", ".join(f"{one} {' or '.join(kinds)}" for one, kinds in wanted.items())
        raise ContractError(f"{name}: " + "; ".join(problems), remedy="columns: " + expected)
