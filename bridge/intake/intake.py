"""The intake of messages of every protocol: mapping, envelope, dead letters, messages in flight.

An intake belongs to one loop thread, which passes messages to it and calls ``turn``. The intake decides the topic of a
message and reports stored messages. Its owner decides whom to notify, and on which connection. Other threads call only
``wake``.

The path of a message:

1. ``take`` leaves out commands, ``$`` topics and skipped retained messages, because they are not readings. A device's
   request to push is not a reading either; it goes to the resume topic.
2. The mapping provides topic and key, the envelope the properties. Without a route, or too large, it is a dead letter.
3. At the end of the turn, its partition's producer sends all waiting messages and requests one receipt.
4. ``turn`` returns the messages that receipts have confirmed since the last turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import structlog

from bridge.bounded_map import BoundedMap
from bridge.contract import (
    DEAD_LETTERS_TOPIC,
    DEAD_MALFORMED,
    P_DEVICE,
    P_TOPIC,
    RESUME_TOPIC,
    full_envelope,
)
from bridge.dead_letters import dead_letter, letter_key
from bridge.health import Health
from bridge.intake.blocking import BlockingPolicy
from bridge.intake.idle import IdlePolicy
from bridge.intake.metrics import LinkMetrics
from bridge.intake.partition_producers import PartitionProducers, Reading
from bridge.intake.sightings import Sighting, Sightings
from bridge.mqtt.envelope import Envelope, from_push, size_of
from bridge.mqtt.types import Message
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import PulsarClient
from bridge.pulsar.wire.batches import head_of
from bridge.routing.mapper import LeftOut, Mapper, NoRoute, PerMessage, ResumeAsked, Route
from bridge.settings import Settings

__all__ = ["PULSAR_RESERVE", "Intake"]

log = structlog.get_logger("ingest")

PULSAR_RESERVE: Final = 64 * 1024
"""Bytes that a message stays below Pulsar's limit, for headers not counted (H1)."""

_READING_OVERHEAD: Final = 1024
"""Approximate memory of a message in flight without payload and properties, in bytes."""

_REQUEST: Final = 2048
"""Most bytes that are kept of a device's request to push; a position is shorter."""

_MOST_AT_ONCE: Final = 500
"""Most messages that are read at once. Acknowledgements and a stop wait no longer."""

_TARGETS_BYTES: Final = 128 * 1024 * 1024
_LONGEST_CACHED: Final = 256
"""Longer MQTT topics are not cached, so that the cache stays small (H10)."""


class _Target:
    """The Pulsar topic of one MQTT topic's messages, and the data that they share."""

    __slots__ = ("flow", "head", "key", "properties", "seen", "text", "topic")

    def __init__(self, topic: str, key: str, properties: dict[str, str], seen: Sighting | None) -> None:
        self.topic = topic
        """Full name of the Pulsar topic."""
        self.key = key
        self.properties = properties
        self.text = size_of(b"", key, properties)
        self.head = head_of(key, properties)
        self.flow: Any = None
        """The result of ``PartitionProducers.put`` for the last message."""
        self.seen = seen
        """The presence of their device, None without a device or presence records."""


class Intake:
    """Stores the messages of one link in Pulsar.

    Each envelope contains ``link`` and ``protocol``. ``full`` becomes true at ``limit`` messages in flight. The owner
    stops reading then, because the intake refuses nothing. Pulsar's threads call ``wake``, which makes the owner take
    its next turn. ``alive`` is called with a device after a silence, and from time to time while it publishes. Both
    must neither block nor raise.
    """

    def __init__(
        self,
        settings: Settings,
        client: PulsarClient,
        admin: PulsarAdmin,
        *,
        mapper: Mapper,
        link: str,
        protocol: str,
        limit: int,
        wake: Callable[[], None],
        health: Health | None = None,
        alive: Callable[[str], None] | None = None,
    ) -> None:
        self.in_flight = 0
        """Messages of all connections that are not known to be stored."""
        self.in_flight_bytes = 0
        self.limit = limit
        self.metrics = LinkMetrics(link)
        self._part = (health or Health()).part(f"writes of {link}")
        self._part.ready()
        self._settings = settings
        self._link = link
        self._mapper = mapper
        self._envelope = Envelope(link=link, protocol=protocol, mark=settings.ingest.retained == "mark")
        self._targets: BoundedMap[_Target] = BoundedMap(_TARGETS_BYTES, each=768, copies=5)
        self._skip_retained = settings.ingest.retained == "skip"
        self._max_size = settings.ingest.limits.message_size - PULSAR_RESERVE
        self._limit_bytes = settings.ingest.limits.in_flight_size
        self._dead_topic = settings.pulsar.system_topic(DEAD_LETTERS_TOPIC)
        self._resume_topic = settings.pulsar.system_topic(RESUME_TOPIC)
        self._producers = PartitionProducers(
            client,
            admin,
            max_pending=limit + 1000,
            dead_letter_topic=self._dead_topic,
            metrics=self.metrics,
            wake=wake,
            on_refused=self._refused,
            policy=BlockingPolicy(
                settings.ingest.on_blocked == "deadletter", settings.ingest.blocked_after, owner=link
            ),
            idle=IdlePolicy(settings.ingest.limits.producer_idle, settings.ingest.limits.producers),
        )
        every_s = settings.ingest.presence_interval
        self._sightings = Sightings(every_s) if every_s and alive is not None else None
        self._alive = alive or (lambda _device: None)
        self._turn_count = 0
        self._turn_bytes = 0
        self._stalled = 0.0  # start of the stall, 0 without one
        self.metrics.gauges["in_flight_limit"].set(limit)
        self.metrics.gauges["in_flight_limit_bytes"].set(self._limit_bytes)
        self._next_report = self._report_every = 0.0

    @property
    def full(self) -> bool:
        """Whether the window is full, in messages or in bytes. The owner then takes only messages that cannot wait."""
        return self.in_flight >= self.limit or self.in_flight_bytes >= self._limit_bytes

    @property
    def room(self) -> int:
        """Messages to read at once: the free part of the window, from 1 to 500."""
        return max(1, min(_MOST_AT_ONCE, self.limit - self.in_flight))

    @property
    def has_room(self) -> bool:
        """Whether to resume reading, below three quarters. Reading then does not stop and start at each receipt."""
        return self.in_flight * 4 <= self.limit * 3 and self.in_flight_bytes * 4 <= self._limit_bytes * 3

    def take_all(self, messages: Sequence[Message], epoch: int, arrived: float) -> list[Reading]:
        """Take messages in order of arrival, as ``take`` does. Returns their readings; ``arrived`` is monotonic."""
        found: list[Reading] = []
        add, put, cached, limit = found.append, self._producers.put, self._targets.get, self._max_size
        event_ms, extra_of = time.time_ns() // 1_000_000, self._envelope.extra
        count = size_sum = payloads = 0
        for message in messages:
            topic, payload, qos, retain, dup, mid, properties, malformed = message
            target = cached(topic)
            if target is not None and not malformed:
                envelope, head, length = target.properties, target.head, len(payload)
                size = length + target.text
                if qos != 1 or retain or dup or properties is not None:
                    extra = extra_of(qos, retain, dup, properties)
                    envelope, head = {**envelope, **extra.properties}, head + extra.head
                    size += extra.text
                    if extra.from_push or (retain and self._skip_retained):
                        target = None
                if size <= limit and target is not None:
                    reading = Reading(
                        epoch, mid, arrived, payload, target.topic, target.key, envelope, size, event_ms, head
                    )
                    count += 1
                    size_sum += size
                    payloads += length
                    target.flow = put(reading, target.flow)
                    add(reading)
                    seen = target.seen
                    if seen is not None and not retain:
                        if arrived - seen.last_message > seen.quiet or arrived >= seen.due:
                            self._sighted(seen, arrived)
                        seen.last_message = arrived
                    continue
            reading = Reading(epoch, mid, arrived)
            self.take(reading, message)
            add(reading)
        self.in_flight += count
        self.in_flight_bytes += size_sum + count * _READING_OVERHEAD
        self._turn_count += count
        self._turn_bytes += payloads
        return found

    def take(self, reading: Reading, message: Message) -> str | None:
        """Take one message; ``turn`` returns ``reading``, the owner's object for it, once it is stored.

        Returns None, or the reason why the message is left out: then nothing is stored, and ``stored`` is set.
        """
        self._turn_count += 1
        self._turn_bytes += len(message.payload)
        target: _Target | NoRoute | LeftOut | None = self._targets.get(message.topic)
        if message.malformed:
            self.metrics.counters["malformed"].inc()
            target = NoRoute(f"{DEAD_MALFORMED}{message.malformed}", "")
        elif target is None:
            target = self._target_of(message)
        asks = isinstance(target, _Target) and target.topic == self._resume_topic
        skip = message.retain and (self._skip_retained or asks)  # a retained request is not current
        if skip or isinstance(target, LeftOut) or from_push(message):
            reading.stored = True
            reason = target.reason if isinstance(target, LeftOut) else "retained" if skip else "command"
            self.metrics.by["left_out", reason].inc()
            return reason
        reading.payload = message.payload[:_REQUEST] if asks else message.payload
        reading.event_ms = time.time_ns() // 1_000_000
        if isinstance(target, NoRoute):
            reading.properties = self._envelope.of(message, self._envelope.of_topic(message.topic, None))
            topic = self._settings.pulsar.readings_topic(target.local, target.namespace) if target.local else ""
            self._dead_letter(reading, topic, target.reason)
            self._producers.put(reading)
        else:
            reading.properties = self._envelope.of(message, target.properties)
            if target.seen is not None and not message.retain:
                self._sighted(target.seen, reading.arrived)
                target.seen.last_message = reading.arrived
            if self._written(reading, target):
                envelope = reading.properties
                reading.head = target.head if envelope is target.properties else head_of(target.key, envelope)
                target.flow = self._producers.put(reading, target.flow)
            else:
                self._producers.put(reading)
        self.in_flight += 1
        self.in_flight_bytes += reading.size + _READING_OVERHEAD
        return None

    def _sighted(self, seen: Sighting, arrived: float) -> None:
        assert self._sightings is not None
        if self._sightings.record_due(seen, arrived):
            self._alive(seen.device)

    def _target_of(self, message: Message) -> _Target | NoRoute | LeftOut:
        """Return the target of an uncached topic, or of a message with its own route."""
        topic = message.topic
        route = self._mapper.route(topic)
        if isinstance(route, ResumeAsked):
            envelope = self._envelope.of_topic(topic, Route("resume", RESUME_TOPIC, route.device, route.device, None))
            return _Target(self._resume_topic, route.device, envelope, None)
        fixed = isinstance(route, Route)
        if isinstance(route, PerMessage):
            route = route.of(message.payload, () if message.properties is None else message.properties.user)
        if not isinstance(route, Route):
            return route
        properties = self._envelope.of_topic(topic, route)
        full = self._settings.pulsar.readings_topic(route.local, route.namespace)
        known = self._sightings is not None and route.device is not None
        seen = self._sightings.of(route.device) if known else None  # type: ignore[union-attr, arg-type]
        target = _Target(full, route.key, properties, seen)
        if fixed and len(topic) <= _LONGEST_CACHED:
            self._targets.put(topic, target)
        return target

    @property
    def topics(self) -> list[str]:
        """The full names of the Pulsar topics written to. Any thread may read them."""
        return self._producers.topics

    @property
    def partitions(self) -> dict[str, int]:
        """The readings topics written to, with their numbers of partitions. Any thread may read them."""
        return self._producers.partitions

    def is_dead_letter(self, reading: Reading) -> bool:
        """Whether a message went to the dead letters; its property ``pb.dead.reason`` contains the reason."""
        return reading.topic == self._dead_topic

    def _written(self, reading: Reading, target: _Target) -> bool:
        """Set topic and size of the reading. Returns False if it is too large and becomes a dead letter."""
        size = size_of(reading.payload, target.key, reading.properties)
        reading.key = target.key
        if size > self._max_size:
            why = f"payload, key and properties have {size} bytes, the limit is {self._max_size}"
            self._dead_letter(reading, target.topic, why)
            return False
        reading.topic = target.topic
        reading.size = size
        return True

    def _dead_letter(self, reading: Reading, topic: str, reason: str) -> None:
        """Turn the reading into a dead letter. It counts as stored once the dead letter is stored (H5)."""
        device = full_envelope(reading.properties).get(P_DEVICE, "")
        mqtt_topic = reading.properties[P_TOPIC]
        log.warning(
            "message goes to the dead letters. Action: see pulsebridge dead-letters list",
            link=self._link,
            mqtt_topic=mqtt_topic[:200],
            why=reason,
            shown=1,
        )
        size = len(reading.payload)
        reading.payload, reading.properties = dead_letter(
            reading.payload,
            topic=topic,
            device=device,
            reason=reason,
            at_us=time.time_ns() // 1000,
            properties=reading.properties,
            key=reading.key or None,
            whole_bytes=self._settings.ingest.limits.dead_letter_size,
            properties_bytes=self._settings.ingest.limits.message_size // 4,
        )
        if len(reading.payload) < size:
            self.metrics.counters["cut"].inc()
            log.error(
                "payload is too large for a dead letter, only its head is kept. Action: limit the size of messages",
                link=self._link,
                mqtt_topic=mqtt_topic[:200],
                bytes=size,
                shown=1,
            )
        reading.topic = self._dead_topic
        reading.key = letter_key(device or mqtt_topic)
        reading.size = size_of(reading.payload, reading.key, reading.properties)

    def _refused(self, reading: Reading, reason: str) -> None:
        """Dead-letter a message that Pulsar refused for good; the others of its partition continue."""
        self.in_flight_bytes -= reading.size
        self._dead_letter(reading, reading.topic, reason)
        self.in_flight_bytes += reading.size
        self._producers.put(reading)

    def turn(self, now: float) -> list[Reading]:
        """Send messages and process receipts. Returns the newly stored readings; ``now`` is monotonic."""
        stored = self._producers.turn(now)
        if stored:
            self.in_flight -= len(stored)
            for reading in stored:
                self.in_flight_bytes -= reading.size + _READING_OVERHEAD
                if reading.topic == self._dead_topic:
                    self.metrics.counters["dead_letters"].inc()
            self.metrics.counters["stored"].inc(len(stored))
            self.metrics.store.observe(now - stored[0].arrived)
        if self._turn_count:
            self.metrics.counters["received"].inc(self._turn_count)
            self.metrics.counters["received_bytes"].inc(self._turn_bytes)
            self._turn_count = self._turn_bytes = 0
        return stored

    def next_in(self, now: float) -> float:
        """How long the owner may wait for its next turn without a ``wake``, in seconds."""
        return min(1.0, self._producers.next_in(now))

    def watch(self, now: float, oldest: float | None) -> None:
        """Set the gauges and log stalls; call it each second. ``oldest`` is the oldest arrival, None without one."""
        age = 0.0 if oldest is None else now - oldest
        self.metrics.gauges["oldest_unacked_seconds"].set(age)
        self.metrics.gauges["in_flight"].set(self.in_flight)
        self.metrics.gauges["in_flight_bytes"].set(self.in_flight_bytes)
        self.metrics.gauges["producers"].set(self._producers.producers)
        self.metrics.gauges["blocked_partitions"].set(self._producers.diverting)
        self.metrics.gauges["topics"].set(self._mapper.topics)
        self.metrics.cache(self._mapper.misses, self._mapper.remembered)
        if self._mapper.forgets(now):
            self._targets.clear()
            self._producers.forget_resting()
        if age < self._settings.ingest.stall_warning:
            if self._stalled:
                self._part.ready()
                log.warning("ingest no longer stalls. Action: none", after_s=round(now - self._stalled))
                self._stalled = 0.0
            return
        self._part.waits(f"Pulsar has confirmed nothing for {age:.0f} s")
        if not self._stalled:
            self._stalled = self._next_report = now - age
            self._report_every = 30.0
        if now >= self._next_report:
            self._next_report = now + self._report_every
            self._report_every = min(2 * self._report_every, 600.0)
            self._report_stalls(now, age)

    def _report_stalls(self, now: float, age: float) -> None:
        """Log stalled topics, oldest first: one topic delays all, because acknowledgements leave in order."""
        stalled = sorted(self._producers.blocked(), key=lambda one: one.oldest)
        for one in stalled[:3]:
            log.warning(
                "Pulsar does not confirm; nothing is lost, but every acknowledgement waits for it: "
                + (one.why or "the cause is unknown")
                + ". Action: check that Pulsar runs, and the quota of the topic",
                topic=one.name,
                waiting=one.waiting,
                oldest_s=round(now - one.oldest),
            )
        advice = "it acknowledges nothing until these topics flow. Action: fix them"
        if self._settings.ingest.on_blocked == "wait":
            advice += ", or set ingest.on_blocked: deadletter, so that one blocked topic does not delay the others"
        log.warning(f"ingest stalls: {advice}", topics=len(stalled), oldest_s=round(age), in_flight=self.in_flight)

    def close(self) -> None:
        """Close the producers. It blocks: call it in a thread. Unstored messages are dropped unacknowledged."""
        self._producers.close()
