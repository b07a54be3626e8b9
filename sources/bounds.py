"""Parses the start or end of a query, for all or some partitions.

It is a word, a position or a publish time. ``sources.starting`` resolves it to an entry of a partition.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from bridge.contract import Position, base_topic, full_name, partition_name
from bridge.pulsar.wire.protobuf import numbers_of

__all__ = ["EARLIEST", "LATEST", "At", "Bound", "StartingOffsets", "offsets_of", "times_of"]

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_OF_KAFKA: Final = {-2: EARLIEST, -1: LATEST}
_OF_STREAMNATIVE: Final = {-1: EARLIEST, -2: LATEST}


@dataclass(frozen=True)
class At:
    """The first entry that was published at this time or later, ms since the epoch."""

    time_ms: int


Bound: TypeAlias = Position | At | str
"""A next entry to read, a publish time, or ``EARLIEST`` or ``LATEST``."""


@dataclass(frozen=True)
class StartingOffsets:
    """A start or an end: one for all partitions, or bounds for some."""

    default: str
    bounds: Mapping[str, Bound]
    """Topic or partition to its bound; a partition's own has precedence over its topic's."""
    time_ms: int | None = None
    text: str = EARLIEST
    """The user's text, which the subscription records (H12)."""

    def of(self, partition: str) -> Bound:
        """Return the bound of a partition, without regard to ``time_ms``."""
        return self.bounds.get(partition, self.bounds.get(base_topic(partition), self.default))


def offsets_of(text: str, *, ending: bool) -> StartingOffsets:
    """Parse ``startingOffsets`` or ``endingOffsets``. Raises ValueError for other text.

    Partitions that JSON does not name are read whole, so that nothing is skipped without a request.
    """
    text = text.strip()
    if text.lower() in (EARLIEST, LATEST):
        return StartingOffsets(text.lower(), {}, text=text.lower())
    body = _object(text)
    if body.get("v") == 1 and isinstance(body.get("t"), dict):  # an offset copied from a checkpoint
        body = body["t"]
    bounds = {name: _offset(value, ending) for name, value in _by_partition(body)}
    written = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return StartingOffsets(LATEST if ending else EARLIEST, bounds, text=written)


def times_of(text: str, *, ending: bool) -> StartingOffsets:
    """Parse ``startingTime`` or ``endingTime``: ms for all, or JSON. Raises ValueError for other text."""
    text = text.strip()
    if not text.startswith("{"):
        return StartingOffsets(LATEST, {}, _ms(int(text)), f"time:{int(text)}")
    body = _object(text)
    bounds: dict[str, Bound] = {}
    for name, value in _by_partition(body):
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{value!r} is not a time in ms")
        bounds[name] = _OF_STREAMNATIVE.get(value) or At(_ms(value))
    written = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return StartingOffsets(LATEST if ending else EARLIEST, bounds, text=f"time:{written}")


def _object(text: str) -> dict[str, Any]:
    body = json.loads(text)
    if not isinstance(body, dict):
        raise ValueError("not a JSON object")
    return body


def _by_partition(body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield name and value; ``{topic: {"0": value}}`` names partitions as in Spark's Kafka source."""
    for topic, value in body.items():
        if isinstance(value, dict):
            for number, of in value.items():
                yield partition_name(full_name(topic), int(number)), of
        else:
            yield full_name(topic), value


def _ms(value: int) -> int:
    if value < 0:
        raise ValueError("a time before 1970")
    return value


def _offset(value: Any, ending: bool) -> Bound:
    if isinstance(value, str) and value.lower() in (EARLIEST, LATEST):
        return value.lower()
    if isinstance(value, int) and not isinstance(value, bool) and value in _OF_KAFKA:
        return _OF_KAFKA[value]
    if not isinstance(value, list) or not all(isinstance(n, int) for n in value):
        raise ValueError(f"{value!r} is not an offset")
    if len(value) == 2:
        return Position(value[0], value[1])
    return _message_id(bytes(n & 0xFF for n in value), ending)


def _message_id(data: bytes, ending: bool) -> Bound:
    """Parse the bytes of a Java client's message id, as in StreamNative's JSON.

    Its ledger is field 1, its entry field 2, both varints. An end names the last message to read. The batch index is
    ignored: the entry counts as a whole.
    """
    fields = numbers_of(data)
    if 1 not in fields or 2 not in fields:
        raise ValueError("not the bytes of a message id")
    ledger, entry = fields[1], fields[2]
    if ledger >> 63:  # -1, -1: MessageId.earliest
        return EARLIEST
    if ledger == 2**63 - 1:
        return LATEST
    return Position(ledger, entry + 1 if ending else entry)
