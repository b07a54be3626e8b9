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
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import structlog

from bridge.contract import DEAD_LETTERS_TOPIC, DEAD_MALFORMED, P_DEVICE, P_TOPIC, full_envelope
from bridge.dead_letters import dead_letter, letter_key
from bridge.health import Health, Part
from bridge.intake.flow import Reading, Stalled
from bridge.intake.metrics import LinkMetrics
from bridge.intake.partition_producers import PartitionProducers
from bridge.intake.targets import Target, Targets
from bridge.mqtt.envelope import Envelope, from_push
from bridge.mqtt.types import Message
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import PulsarClient
from bridge.pulsar.wire.batches import head_of
from bridge.routing.mapper import LeftOut, Mapper, NoRoute
from bridge.settings import Settings
from bridge.settings.ingest import IngestSettings

__all__ = ["PULSAR_RESERVE", "Intake", "StallLog"]

log = structlog.get_logger("ingest")

PULSAR_RESERVE: Final = 64 * 1024
"""Bytes that a message stays below Pulsar's limit, for headers not counted (H1)."""

_READING_OVERHEAD: Final = 1024
"""Approximate memory of a message in flight without payload and properties, in bytes."""

_REQUEST: Final = 2048
"""Most bytes that are kept of a device's request to push; a position is shorter."""

_MOST_AT_ONCE: Final = 500
"""Most messages that are read at once. Acknowledgements and a stop wait no longer."""


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
        self.closed = False
        self.limit = limit
        self.metrics = LinkMetrics(link)
        self._stalls = StallLog((health or Health()).part(f"writes of {link}"), settings.ingest)
        self._settings = settings
        envelope = Envelope(link=link, protocol=protocol, mark=settings.ingest.retained == "mark")
        self._targets = Targets(settings, mapper, envelope, alive)
        self._skip_retained = settings.ingest.retained == "skip"
        self._max_size = settings.ingest.limits.message_size - PULSAR_RESERVE
        self._limit_bytes = settings.ingest.limits.in_flight_size
        self._dead_topic = settings.pulsar.system_topic(DEAD_LETTERS_TOPIC)
        self.producers = PartitionProducers(
            client,
            admin,
            settings.ingest,
            owner=link,
            max_pending=limit + 1000,
            metrics=self.metrics,
            wake=wake,
            on_refused=self._refused,
        )
        self._turn_count = 0
        self._turn_bytes = 0
        self.metrics.gauges["in_flight_limit"].set(limit)
        self.metrics.gauges["in_flight_limit_bytes"].set(self._limit_bytes)

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
        add, put, cached, limit = found.append, self.producers.put, self._targets.cache.get, self._max_size
        event_ms, extra_of = time.time_ns() // 1_000_000, self._targets.envelope.extra
        count = size_sum = payloads = 0
        for message in messages:
            topic, payload, qos, retain, dup, mid, properties, malformed = message
            target = cached(topic)
            if isinstance(target, Target) and not malformed:
                envelope, head, length = target.properties, target.head, len(payload)
                if qos != 1 or retain or dup or properties is not None:
                    extra = extra_of(qos, retain, dup, properties)
                    envelope, head = {**envelope, **extra.properties}, head + extra.head
                    if extra.from_push or (retain and self._skip_retained):
                        target = None
                size = length + len(head)
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
                            self._targets.sighted(seen, arrived)
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

    def seen_elsewhere(self, device: str) -> None:
        """Another link has reported the device: if it publishes here again, it has moved. From any thread."""
        self._targets.seen_elsewhere(device)

    def take(self, reading: Reading, message: Message) -> str | None:
        """Take one message; ``turn`` returns ``reading``, the owner's object for it, once it is stored.

        Returns None, or the reason why the message is left out: then nothing is stored, and ``stored`` is set.
        """
        self._turn_count += 1
        self._turn_bytes += len(message.payload)
        targets = self._targets
        target: Target | NoRoute | LeftOut
        if message.malformed:
            self.metrics.counters["malformed"].inc()
            target = NoRoute(f"{DEAD_MALFORMED}{message.malformed}")
        else:
            target = targets.of(message)
        asks = isinstance(target, Target) and target.topic == targets.resume_topic
        skip = message.retain and (self._skip_retained or asks)  # a retained request is not current
        if skip or isinstance(target, LeftOut) or from_push(message.properties):
            reading.stored = True
            reason = target.reason if isinstance(target, LeftOut) else "retained" if skip else "command"
            self.metrics.by["left_out", reason].inc()
            return reason
        reading.payload = message.payload[:_REQUEST] if asks else message.payload
        reading.event_ms = time.time_ns() // 1_000_000
        if isinstance(target, NoRoute):
            reading.properties = targets.envelope.of(message, targets.envelope.of_topic(message.topic, None))
            self._dead_letter(reading, target.topic, target.reason)
            self.producers.put(reading)
        else:
            reading.properties = targets.envelope.of(message, target.properties)
            if target.seen is not None and not message.retain:
                targets.sighted(target.seen, reading.arrived)
                target.seen.last_message = reading.arrived
            envelope, reading.key = reading.properties, target.key
            head = target.head if envelope is target.properties else head_of(target.key, envelope)
            size = len(reading.payload) + len(head)
            if size > self._max_size:
                why = f"payload, key and properties have {size} bytes, the limit is {self._max_size}"
                self._dead_letter(reading, target.topic, why)
                self.producers.put(reading)
            else:
                reading.topic, reading.size, reading.head = target.topic, size, head
                target.flow = self.producers.put(reading, target.flow)
        self.in_flight += 1
        self.in_flight_bytes += reading.size + _READING_OVERHEAD
        return None

    def is_dead_letter(self, reading: Reading) -> bool:
        """Whether a message went to the dead letters; its property ``pb.dead.reason`` contains the reason."""
        return reading.topic == self._dead_topic

    def _dead_letter(self, reading: Reading, topic: str, reason: str) -> None:
        """Turn the reading into a dead letter. It counts as stored once the dead letter is stored (H5)."""
        device = full_envelope(reading.properties).get(P_DEVICE, "")
        mqtt_topic = reading.properties[P_TOPIC]
        log.warning(
            "message goes to the dead letters. Action: see pulsebridge dead-letters list",
            link=self.metrics.link,
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
                link=self.metrics.link,
                mqtt_topic=mqtt_topic[:200],
                bytes=size,
                shown=1,
            )
        reading.topic = self._dead_topic
        reading.key = letter_key(device or mqtt_topic)
        reading.size = len(reading.payload) + len(head_of(reading.key, reading.properties))

    def _refused(self, reading: Reading, reason: str) -> None:
        """Dead-letter a message that Pulsar refused for good; the others of its partition continue."""
        self.in_flight_bytes -= reading.size
        self._dead_letter(reading, reading.topic, reason)
        self.in_flight_bytes += reading.size
        self.producers.put(reading)

    def turn(self, now: float) -> list[Reading]:
        """Send messages and process receipts. Returns the newly stored readings; ``now`` is monotonic."""
        stored = self.producers.turn(now)
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
        return min(1.0, self.producers.next_in(now))

    def watch(self, now: float, oldest: float | None) -> None:
        """Set the gauges and log stalls; call it each second. ``oldest`` is the oldest arrival, None without one."""
        age = 0.0 if oldest is None else now - oldest
        self.metrics.gauges["oldest_unacked_seconds"].set(age)
        self.metrics.gauges["in_flight"].set(self.in_flight)
        self.metrics.gauges["in_flight_bytes"].set(self.in_flight_bytes)
        self.metrics.gauges["producers"].set(self.producers.producers)
        self.metrics.gauges["blocked_partitions"].set(self.producers.diverting)
        targets = self._targets
        self.metrics.gauges["topics"].set(targets.mapper.topics)
        self.metrics.gauges["topic_cache_entries"].set(len(targets.cache))
        self.metrics.counters["topic_cache_misses"].inc(targets.misses)
        targets.misses = 0
        if targets.mapper.forgets(now):
            targets.cache.clear()
            self.producers.forget_resting()
        self._stalls.watch(now, age, self.producers.blocked, self.in_flight)

    def close(self) -> None:
        """Close the producers. It blocks: call it in a thread. Unstored messages are dropped unacknowledged."""
        self.closed = True
        self._stalls.close()
        self.producers.close()
        self.metrics.end()


class StallLog:
    """Reports that Pulsar confirms nothing for a link: in its health, and in the log, ever more rarely."""

    def __init__(self, part: Part, settings: IngestSettings) -> None:
        self._part = part
        self._part.ready()
        self._settings = settings
        self._since = 0.0  # start of the stall, 0 without one
        self._next_report = self._report_every = 0.0

    def close(self) -> None:
        """Nothing waits for Pulsar any more."""
        self._part.ready()

    def watch(self, now: float, age: float, stalled: Callable[[], Iterable[Stalled]], in_flight: int) -> None:
        """Note the age of the oldest message; ``stalled`` returns the topics that delay the ``in_flight`` ones."""
        if age < self._settings.stall_warning:
            if self._since:
                self._part.ready()
                log.warning("ingest no longer stalls. Action: none", after_s=round(now - self._since))
                self._since = 0.0
            return
        self._part.waits(f"Pulsar has confirmed nothing for {age:.0f} s")
        if not self._since:
            self._since = self._next_report = now - age
            self._report_every = 30.0
        if now >= self._next_report:
            self._next_report = now + self._report_every
            self._report_every = min(2 * self._report_every, 600.0)
            self._report(now, age, sorted(stalled(), key=lambda one: one.oldest), in_flight)

    def _report(self, now: float, age: float, stalled: list[Stalled], in_flight: int) -> None:
        """Log stalled topics, oldest first: one topic delays all, because acknowledgements leave in order."""
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
        if self._settings.on_blocked == "wait":
            advice += ", or set ingest.on_blocked: deadletter, so that one blocked topic does not delay the others"
        log.warning(f"ingest stalls: {advice}", topics=len(stalled), oldest_s=round(age), in_flight=in_flight)
