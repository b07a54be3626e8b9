"""Presence: signs of life and of absence, by device, in any order.

An absence counts only if it is newer than the last sign of life (H31); a sign of life ends every absence that is not newer.
A device without a sign does not count as absent. The memory is bounded in bytes, since devices name themselves (H35); the
device with the least recent sign is forgotten first, and then counts as online.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import structlog

from bridge.backoff import backoff_s
from bridge.bounded_map import BoundedMap
from bridge.contract import COMMANDS_TOPIC, PRESENCE_TOPIC
from bridge.contract.presence import PresenceRecord
from bridge.errors import ContractError, PulsebridgeError
from bridge.mqtt.types import Message
from bridge.pulsar.client import EARLIEST, MessageId, PulsarClient, received
from bridge.pulsar.sending import close_quietly
from bridge.push.position_reader import leave_out_foreign, record_key
from bridge.routing.templates import Filter
from bridge.settings.push import PresenceRule

__all__ = ["Presence", "PresenceLog", "PresenceRules", "Seen", "Sign"]

_KNOWN_BYTES: Final = 96 * 1024 * 1024
"""Some 200,000 devices with usual names."""


class Presence:
    """What is known of the devices of a partition. Times are µs since the epoch."""

    def __init__(self, most_bytes: int = _KNOWN_BYTES) -> None:
        # Last sign of life, last sign of absence.
        self._known: BoundedMap[tuple[int, int]] = BoundedMap(most_bytes, each=192)

    def __len__(self) -> int:
        return len(self._known)

    def _note(self, device: str, seen: int, absent: int) -> None:
        self._known.put(device, (seen, absent))

    def alive(self, device: str, at_us: int) -> bool:
        """Note a sign of life. Returns whether it is the newest that is known of the device."""
        seen, absent = self._known.get(device, (0, 0))
        if at_us < absent:
            return False
        self._note(device, max(seen, at_us), 0)
        return True

    def gone(self, device: str, at_us: int) -> bool:
        """Note a sign of absence. Returns whether it counts."""
        seen, absent = self._known.get(device, (0, 0))
        if at_us <= seen:
            return False
        self._note(device, seen, max(absent, at_us))
        return True

    def absent(self, device: str) -> bool:
        """Return whether the last that is known of the device is its absence."""
        return self._known.get(device, (0, 0))[1] > 0

    def seen_us(self, device: str) -> int:
        """Return when the device last gave a sign of life, 0 when that is not known."""
        return self._known.get(device, (0, 0))[0]


class Sign(NamedTuple):
    """What one message says of a device."""

    device: str
    alive: bool


class PresenceRules:
    """Reads birth and will messages."""

    def __init__(self, rules: Sequence[PresenceRule]) -> None:
        """Raises ValueError for a filter that is none or that names no device."""
        self._rules = [(Filter.parse(rule.filter), {text.encode() for text in rule.absent}) for rule in rules]
        self.filters = tuple(dict.fromkeys(found.mqtt for found, _ in self._rules))

    def sign(self, message: Message) -> Sign | None:
        """Return what the message says, None when no rule is about it; the first rule that matches decides."""
        for found, absent in self._rules:
            captures = found.match(message.topic.split("/"))
            if captures is not None:
                return Sign(captures["device"], message.payload.strip() not in absent)
        return None


log = structlog.get_logger("push")

_IDLE_MS: Final = 500
_GATHER_MS: Final = 5
_AT_ONCE: Final = 256
_RETRY_S: Final = (1.0, 30.0)


@dataclass(frozen=True, slots=True)
class Seen:
    """Event: devices and when each gave a sign of life, in µs since the epoch by the clock of the host that received it."""

    signs: tuple[tuple[str, int], ...]


class PresenceLog:
    """Reads the partition of the presence topic that has the number of a commands partition. ``post`` is called on the
    thread of this log.

    Reads the signs of life that ingest notes in Pulsar, on a thread of its own.

    It begins with the last sign of each device in the compacted topic, and continues with new ones. Push does not wait
    for it: while the first ones are read, a device counts as online.
    """

    def __init__(self, client: PulsarClient, partition: int, post: Callable[[object], None]) -> None:
        self._client = client
        self._partition = partition
        self._post = post
        self._closing = threading.Event()
        self._from: MessageId = EARLIEST
        self._warned = False
        self._thread = threading.Thread(target=self._run, name=f"push-presence-{partition}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; before the client is closed."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        attempt = 0
        while not self._closing.is_set():
            try:
                topic = self._topic()
                if topic is not None:
                    self._read(topic)
                    attempt = 0
            except PulsebridgeError as e:
                log.debug("signs of life cannot be read", partition=self._partition, why=str(e))
            except Exception:  # push does not wait for this thread: its end must not go unnoticed
                log.error("signs of life cannot be read. Action: report this", shown=1, exc_info=True)
            self._closing.wait(backoff_s(attempt, *_RETRY_S, 0.5))
            attempt += 1

    def _topic(self) -> str | None:
        """Return the partition to be read, None while there is none that has our devices."""
        settings = self._client.settings
        topic = settings.system_topic(PRESENCE_TOPIC)
        partitions = self._client.partitioned(topic)
        commands = self._client.partitioned(settings.system_topic(COMMANDS_TOPIC))
        if partitions and len(partitions) != len(commands) and not self._warned:
            self._warned = True
            log.warning(
                f"what ingest hears wakes no device: run pulsar-admin topics delete-partitioned-topic {topic}, and it is "
                "re-created with as many partitions as the commands have",
                partitions=len(partitions),
                wanted=len(commands),
            )
        return partitions[self._partition] if partitions and len(partitions) == len(commands) else None

    def _read(self, topic: str) -> None:
        reader: Any = self._client.reader(topic, self._from, queue=1000, compacted=True)
        try:
            while not self._closing.is_set():
                self._some(topic, reader)
        finally:
            close_quietly(reader)

    def _some(self, topic: str, reader: Any) -> None:
        """Wait for a record and hand it on with those that come close behind it."""
        signs: list[tuple[str, int]] = []
        while len(signs) < _AT_ONCE and not self._closing.is_set():
            wait_ms = _GATHER_MS if signs else _IDLE_MS
            message = received(reader.read_next, wait_ms, f"reading {topic}")
            if message is None:
                break
            self._from = message.message_id()
            device = record_key(message, topic)
            if not device or not message.data():
                continue
            try:
                record = PresenceRecord.decode(message.data())
            except ContractError as e:
                leave_out_foreign(topic, message.message_id(), str(e), device)
                continue
            signs.append((device, record.seen_us))
        if signs:
            self._post(Seen(tuple(signs)))
