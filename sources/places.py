"""Where a query begins or ends, as its options say it: a word, a place or a publish time, for all or for some.

Pure: text in, places out. Which entry of a partition that is, is found by ``sources.starting``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from bridge.contract import Position, base_topic, full_name, partition_name
from bridge.pulsar_wire.protobuf import numbers_of

__all__ = ["EARLIEST", "LATEST", "At", "Place", "StartingOffsets", "offsets_of", "times_of"]

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_OF_KAFKA: Final = {-2: EARLIEST, -1: LATEST}
_OF_STREAMNATIVE: Final = {-1: EARLIEST, -2: LATEST}


@dataclass(frozen=True)
class At:
    """The first entry that was published at this time or later, ms since the epoch."""

    time_ms: int


Place: TypeAlias = Position | At | str
"""A next entry to read, a publish time, or ``EARLIEST`` or ``LATEST``."""


@dataclass(frozen=True)
class StartingOffsets:
    """Where to begin, or to end: a word for all, places for some, or a publish time in ms for all."""

    default: str
    places: Mapping[str, Place]
    """Topic or partition to its place; a partition's own counts before its topic's."""
    time_ms: int | None = None
    text: str = EARLIEST
    """As the user gave it: what the subscription records (H12)."""

    def of(self, partition: str) -> Place:
        """Return what is said of a partition, not counting ``time_ms``."""
        return self.places.get(partition, self.places.get(base_topic(partition), self.default))


def offsets_of(text: str, *, ending: bool) -> StartingOffsets:
    """Read ``startingOffsets`` or ``endingOffsets``. Raises ValueError when it is none.

    What JSON does not name is read whole: nothing is skipped that nobody asked to skip.
    """
    text = text.strip()
    if text.lower() in (EARLIEST, LATEST):
        return StartingOffsets(text.lower(), {}, text=text.lower())
    body = _object(text)
    if body.get("v") == 1 and isinstance(body.get("t"), dict):  # an offset copied from a checkpoint
        body = body["t"]
    places = {name: _offset(value, ending) for name, value in _by_partition(body)}
    written = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return StartingOffsets(LATEST if ending else EARLIEST, places, text=written)


def times_of(text: str, *, ending: bool) -> StartingOffsets:
    """Read ``startingTime`` or ``endingTime``: ms for all, or JSON. Raises ValueError when it is neither."""
    text = text.strip()
    if not text.startswith("{"):
        return StartingOffsets(LATEST, {}, _ms(int(text)), f"time:{int(text)}")
    body = _object(text)
    places: dict[str, Place] = {}
    for name, value in _by_partition(body):
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{value!r} is no time in ms")
        places[name] = _OF_STREAMNATIVE.get(value) or At(_ms(value))
    written = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return StartingOffsets(LATEST if ending else EARLIEST, places, text=f"time:{written}")


def _object(text: str) -> dict[str, Any]:
    body = json.loads(text)
    if not isinstance(body, dict):
        raise ValueError("not a JSON object")
    return body


def _by_partition(body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield name and value; ``{topic: {"0": value}}`` names partitions as Spark's Kafka source does."""
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


def _offset(value: Any, ending: bool) -> Place:
    if isinstance(value, str) and value.lower() in (EARLIEST, LATEST):
        return value.lower()
    if isinstance(value, int) and not isinstance(value, bool) and value in _OF_KAFKA:
        return _OF_KAFKA[value]
    if not isinstance(value, list) or not all(isinstance(n, int) for n in value):
        raise ValueError(f"{value!r} is no place")
    if len(value) == 2:
        return Position(value[0], value[1])
    return _message_id(bytes(n & 0xFF for n in value), ending)


def _message_id(data: bytes, ending: bool) -> Place:
    """Read the bytes of a Java client's message id, as StreamNative's connector writes them into its JSON.

    Its ledger is field 1, its entry field 2, both varints. An end names the last message that is read. The index in
    a batch is left out: the entry counts as a whole.
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
