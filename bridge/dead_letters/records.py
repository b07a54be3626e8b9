"""What is read back from the dead letter topic: letters, notes among them, and which letters a command means. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from bridge.contract import (
    NOTE_REPLAYED,
    P_DEAD_AT,
    P_DEAD_KEY,
    P_DEAD_LENGTH,
    P_DEAD_NOTE,
    P_DEAD_REASON,
    P_DEAD_TOPIC,
    P_DEVICE,
    P_TOPIC,
    base_topic,
)
from bridge.decoding import checked_position, decodes, json_of_record
from bridge.errors import ConfigError, ContractError
from bridge.topic_templates import Filter

__all__ = ["DeadLetter", "LetterId", "Note", "Place", "Selection", "note_of", "replayed_note"]

_MAX_DIGITS: Final = 18
"""More no number of ours has; a foreign one could be no time at all."""


class Place(NamedTuple):
    """Where a message stands in its partition; ``batch_index`` is its place in a batch, -1 when it was not batched."""

    ledger: int
    entry: int
    batch_index: int = -1

    @classmethod
    def parse(cls, text: str) -> Place:
        """Read ``ledger:entry`` or ``ledger:entry:index``. Raises ValueError."""
        ledger, entry, *index = (int(part) for part in text.split(":", 3))
        return cls(*checked_position((ledger, entry, *(index or [-1]))))

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}" + (f":{self.batch_index}" if self.batch_index >= 0 else "")


class LetterId(NamedTuple):
    """What names a dead letter: ``partition:ledger:entry``, and the index where it was written in a batch."""

    partition: int
    place: Place

    @classmethod
    def parse(cls, text: str) -> LetterId:
        """Read an id as ``list`` prints it. Raises ConfigError."""
        partition, _, place = text.partition(":")
        try:
            return cls(int(partition), Place.parse(place))
        except (ValueError, TypeError) as e:
            raise ConfigError(
                f"{text!r} is no id of a dead letter",
                remedy="ids look like 0:123:4, as dead-letters list shows",
            ) from e

    def __str__(self) -> str:
        return f"{self.partition}:{self.place}"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead letter as it stands in the topic. Times are µs since the epoch."""

    id: LetterId
    key: str
    payload: bytes
    told: Mapping[str, str]
    """Its properties: the envelope of the message, and why it came here."""
    event_ms: int
    """Event time of the message, ms since the epoch, 0 without one."""
    stored_us: int
    problem: str = ""
    """Why key and properties are not all there, for what no writer of ours wrote."""

    @property
    def reason(self) -> str:
        """Why it came here; of what no writer of ours wrote, what is wrong with it."""
        if self.problem:
            return f"it is no dead letter of Pulsebridge: {self.problem}"
        return self.told.get(P_DEAD_REASON, "")

    @property
    def target(self) -> str:
        """The Pulsar topic that it was meant for, without partition; empty when no rule named one."""
        return base_topic(self.told.get(P_DEAD_TOPIC, ""))

    @property
    def target_key(self) -> str:
        """The key that it was meant to have."""
        return self.told.get(P_DEAD_KEY, self.key)

    @property
    def mqtt_topic(self) -> str:
        """The MQTT topic of the publish, empty for what was no publish."""
        return self.told.get(P_TOPIC, "")

    @property
    def device(self) -> str:
        """The device, empty where none was named."""
        return self.told.get(P_DEVICE, "")

    @property
    def at_us(self) -> int:
        """When it was given up."""
        at = self.told.get(P_DEAD_AT, "")
        return int(at) if at.isdecimal() and len(at) < _MAX_DIGITS else self.stored_us

    @property
    def lost_bytes(self) -> int:
        """How many bytes of the payload were not kept, 0 when it is whole (H5)."""
        length = self.told.get(P_DEAD_LENGTH, "")
        return int(length) - len(self.payload) if length.isdecimal() and len(length) < _MAX_DIGITS else 0


@dataclass(frozen=True, slots=True)
class Note:
    """A message among the dead letters that is none: ``replayed`` names letters of the same partition."""

    kind: str
    replayed: frozenset[Place]


def note_of(properties: Mapping[str, str], payload: bytes) -> Note | None:
    """Return the note that a message is, None for a dead letter. An unreadable note notes nothing."""
    kind = properties.get(P_DEAD_NOTE)
    if kind is None:
        return None
    with suppress(ContractError):
        if kind == NOTE_REPLAYED:
            return Note(kind, _places(payload))
    return Note(kind, frozenset())


@decodes("a list of dead letters")
def _places(payload: bytes) -> frozenset[Place]:
    return frozenset(Place.parse(text) for text in json_of_record(payload))


def replayed_note(places: list[Place]) -> tuple[bytes, dict[str, str]]:
    """Return payload and properties of the note that says which letters of its partition were replayed."""
    return json.dumps([str(p) for p in places]).encode(), {P_DEAD_NOTE: NOTE_REPLAYED}


@dataclass(frozen=True)
class Selection:
    """Which dead letters are meant; what is empty or None restricts nothing."""

    ids: frozenset[LetterId] = frozenset()
    topic: str = ""
    """A Pulsar topic (its full or its local name), or an MQTT filter that the publish's topic matches."""
    reason: str = ""
    """Text that the reason contains, in any case."""
    device: str = ""
    since_us: int = 0
    """Given up at this time or later, in µs since the epoch."""

    @property
    def whole_topics(self) -> bool:
        """Whether all dead letters of each topic that is meant are meant."""
        return not (self.ids or self.reason or self.device or self.since_us)

    def means(self, letter: DeadLetter) -> bool:
        """Whether the letter is meant."""
        if self.ids and letter.id not in self.ids:
            return False
        if self.device and letter.device != self.device:
            return False
        if self.reason and self.reason.casefold() not in letter.reason.casefold():
            return False
        if letter.at_us < self.since_us:
            return False
        return not self.topic or self._of_topic(letter)

    def means_target(self, topic: str) -> bool:
        """Whether all letters that were meant for this Pulsar topic are meant."""
        return self.whole_topics and self.topic in ("", topic, topic.rsplit("/", 1)[-1])

    def _of_topic(self, letter: DeadLetter) -> bool:
        if letter.target and base_topic(self.topic) in (letter.target, letter.target.rsplit("/", 1)[-1]):
            return True
        wanted = self._filter
        if wanted is None or not letter.mqtt_topic:
            return False
        return wanted.match(letter.mqtt_topic.split("/")) is not None

    @cached_property
    def _filter(self) -> Filter | None:
        try:
            return Filter.parse(self.topic)
        except ValueError:  # the name of a Pulsar topic
            return None
