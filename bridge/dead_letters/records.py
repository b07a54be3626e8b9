"""Records of the dead letter topic: letters and notes, and the selection of letters."""

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
from bridge.contract.commands import CommandPosition
from bridge.contract.decoding import decodes, json_of_record
from bridge.errors import ConfigError, ContractError
from bridge.routing.templates import Filter

__all__ = ["DeadLetter", "LetterId", "Note", "Selection", "note_of", "replayed_note"]

_MAX_DIGITS: Final = 18
"""Upper bound for digits of a valid number; a longer one is not a valid time."""


class LetterId(NamedTuple):
    """Id of a dead letter: ``partition:ledger:entry``, and the index if it was written in a batch."""

    partition: int
    position: CommandPosition

    @classmethod
    def parse(cls, text: str) -> LetterId:
        """Read an id as ``list`` prints it. Raises ConfigError."""
        partition, _, position = text.partition(":")
        try:
            return cls(int(partition), CommandPosition.parse(position))
        except (ValueError, TypeError) as e:
            raise ConfigError(
                f"{text!r} is not a valid id of a dead letter",
                remedy="ids look like 0:123:4, as dead-letters list shows",
            ) from e

    def __str__(self) -> str:
        return f"{self.partition}:{self.position}"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead letter of the topic. Times are µs since the epoch."""

    id: LetterId
    key: str
    payload: bytes
    properties: Mapping[str, str]
    """The envelope of the message, and the reason for the dead letter."""
    event_ms: int
    """Event time of the message, ms since the epoch, 0 without one."""
    stored_us: int
    problem: str = ""
    """Why key and properties are incomplete, if Pulsebridge did not write the message."""

    @property
    def reason(self) -> str:
        """The reason for the dead letter; if Pulsebridge did not write the message, the problem with it."""
        if self.problem:
            return f"it is not a valid dead letter of Pulsebridge: {self.problem}"
        return self.properties.get(P_DEAD_REASON, "")

    @property
    def target(self) -> str:
        """The original Pulsar topic, without partition; empty if no rule named one."""
        return base_topic(self.properties.get(P_DEAD_TOPIC, ""))

    @property
    def target_key(self) -> str:
        """The key in the original topic."""
        return self.properties.get(P_DEAD_KEY, self.key)

    @property
    def mqtt_topic(self) -> str:
        """The MQTT topic of the publish, empty if the message was not a publish."""
        return self.properties.get(P_TOPIC, "")

    @property
    def device(self) -> str:
        """The device, empty if the letter names none."""
        return self.properties.get(P_DEVICE, "")

    @property
    def at_us(self) -> int:
        """Time at which the message became a dead letter."""
        at = self.properties.get(P_DEAD_AT, "")
        return int(at) if at.isdecimal() and len(at) < _MAX_DIGITS else self.stored_us

    @property
    def lost_bytes(self) -> int:
        """Number of cut bytes of the payload, 0 if it is whole (H5)."""
        length = self.properties.get(P_DEAD_LENGTH, "")
        return int(length) - len(self.payload) if length.isdecimal() and len(length) < _MAX_DIGITS else 0


@dataclass(frozen=True, slots=True)
class Note:
    """A message of the dead letter topic that is not a letter: ``replayed`` names letters of the same partition."""

    kind: str
    replayed: frozenset[CommandPosition]


def note_of(properties: Mapping[str, str], payload: bytes) -> Note | None:
    """Return the note of a message, None for a dead letter. An unreadable note names no letters."""
    kind = properties.get(P_DEAD_NOTE)
    if kind is None:
        return None
    with suppress(ContractError):
        if kind == NOTE_REPLAYED:
            return Note(kind, _positions(payload))
    return Note(kind, frozenset())


@decodes("a list of dead letters")
def _positions(payload: bytes) -> frozenset[CommandPosition]:
    return frozenset(CommandPosition.parse(text) for text in json_of_record(payload))


def replayed_note(positions: list[CommandPosition]) -> tuple[bytes, dict[str, str]]:
    """Return payload and properties of the note that names the replayed letters of its partition."""
    return json.dumps([str(p) for p in positions]).encode(), {P_DEAD_NOTE: NOTE_REPLAYED}


@dataclass(frozen=True)
class Selection:
    """Selection of dead letters; an empty field does not restrict it."""

    ids: frozenset[LetterId] = frozenset()
    topic: str = ""
    """A Pulsar topic (its full or its local name), or an MQTT filter that matches the topic of the publish."""
    reason: str = ""
    """Text that the reason contains, case-insensitive."""
    device: str = ""
    since_us: int = 0
    """Dead letters since this time, in µs since the epoch."""

    def means(self, letter: DeadLetter) -> bool:
        """Return whether the selection contains the letter."""
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
        """Return whether the selection contains all letters of this original Pulsar topic."""
        restricted = self.ids or self.reason or self.device or self.since_us
        return not restricted and self.topic in ("", topic, topic.rsplit("/", 1)[-1])

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
