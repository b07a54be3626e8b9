"""The ingest worker: one MQTT session into Pulsar. It joins the pure parts and decides nothing that they decide.

The way of a message, all on the loop thread:

1. The link hands it over. Commands, ``$`` topics and skipped retained messages are only acknowledged.
2. The mapping names topic and key, the envelope its properties; what has no route or is too large is a dead letter.
3. Its lane gives it to the producer of its partition at the end of the read turn, which asks for one receipt.
4. The receipt marks everything back to the previous one as stored.
5. The acknowledgements at the head of the queue leave, in order of arrival, on the connection of their messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import structlog

from bridge.acks import AckQueue
from bridge.contract import DEAD_LETTERS_TOPIC, P_DEVICE, P_TOPIC
from bridge.dead_letters import dead_letter
from bridge.envelope import from_push, properties_of, size_of
from bridge.errors import RefusedError, TerminalError
from bridge.ingest import metrics
from bridge.ingest.lanes import Lanes, Reading
from bridge.ingest.session import TakeoverJudge, plan_session
from bridge.mapping import LeftOut, Mapper, NoRoute, Route
from bridge.mqtt.client import Link
from bridge.mqtt.types import Connected, Disconnected, LinkHandler, Message, Subscription
from bridge.pulsar_admin import PulsarAdmin
from bridge.pulsar_client import PulsarClient
from bridge.settings import Settings

__all__ = ["PULSAR_RESERVE", "IngestWorker", "in_flight_limit"]

log = structlog.get_logger("ingest")

PULSAR_RESERVE: Final = 64 * 1024
"""What a message stays below Pulsar's limit, in bytes, for headers that are not counted (H1)."""

_READING_OVERHEAD: Final = 1024
"""What one message in flight costs beside its payload and properties, in bytes, roughly."""


def in_flight_limit(settings: Settings) -> int:
    """Return at how many messages that are not stored reading stops.

    Twice the window: after a reconnect the broker sends a whole window again while the one before is still on its
    way into Pulsar. A third waits in the socket.
    """
    return 2 * settings.ingest.max_in_flight


class IngestWorker(LinkHandler):
    """One MQTT session into Pulsar. ``granted`` are the filters that the broker's session had last, None unknown.

    ``remember`` is called with the filters and their QoS once the broker has granted them; it must not block.
    """

    def __init__(
        self,
        settings: Settings,
        client: PulsarClient,
        admin: PulsarAdmin,
        *,
        mapper: Mapper,
        wanted: tuple[Subscription, ...],
        granted: dict[str, int] | None = None,
        remember: Callable[[dict[str, int]], None] = lambda _filters: None,
    ) -> None:
        self.settings = settings
        self.link = Link(settings.mqtt, self, receive_maximum=settings.ingest.max_in_flight)
        self.in_flight = 0
        """Messages that are not known to be stored, of all connections."""
        self.in_flight_bytes = 0
        self.draining = False
        self.ready = False
        """Whether the broker has all subscriptions: what is published from then on is not missed."""
        self._mapper = mapper
        self._wanted = wanted
        self._granted = granted
        self._asked: tuple[Subscription, ...] = ()
        self._remember = remember
        self._limit = in_flight_limit(settings)
        self._acks = AckQueue()
        self._takeover = TakeoverJudge()
        self._dead_topic = settings.pulsar.system_topic(DEAD_LETTERS_TOPIC)
        self._lanes = Lanes(
            client,
            admin,
            max_pending=self._limit + 1000,
            dead_letter_topic=self._dead_topic,
            wake=self.link.wake,
            on_refused=self._refused,
        )
        self._turn_count = 0
        self._turn_bytes = 0
        self._next_watch = 0.0
        self._warned_at = 0.0
        self._warned_reason = ""
        self._stalled = 0.0  # since when, 0 while all flows
        self._losses = 0
        metrics.IN_FLIGHT_LIMIT.set(self._limit)

    # --- the link's events ---

    def on_connected(self, event: Connected) -> None:
        """Void the acknowledgements of the connection before, and subscribe to what the session lacks."""
        self._acks.connected(event.epoch)
        self._losses = 0
        metrics.CONNECTIONS.inc()
        metrics.CONNECTED.set(1)
        if not event.session_present and (event.epoch > 1 or self._granted is not None):
            log.warning(
                "the MQTT broker has lost our session: what was published since the last connection is missing; "
                "check the broker's session expiry and persistence",
                client_id=self.link.client_id,
            )
        log.info("connected to the MQTT broker", session_present=event.session_present, epoch=event.epoch)
        plan = plan_session(self._wanted, self._granted, session_present=event.session_present)
        if plan.unsubscribe:
            self.link.unsubscribe(plan.unsubscribe)
        self._asked = plan.subscribe
        if plan.subscribe:
            self.link.subscribe(plan.subscribe)
        else:
            if plan.unsubscribe:
                self._keep_granted()
            self._ready(anew=0)

    def on_subscribed(self, codes: list[int]) -> None:
        """Keep what was granted. Raises RefusedError when the broker refused a filter."""
        for subscription, code in zip(self._asked, codes, strict=False):
            if code >= 0x80:
                raise RefusedError(
                    f"the MQTT broker refused the subscription to {subscription.filter!r} (code {code:#x})",
                    remedy=f"allow {self.link.client_id!r} to read it, or take it out of ingest.rules and ingest.filters",
                )
            if code < subscription.qos:
                log.warning(
                    "the MQTT broker granted a lower QoS, messages can be lost on the way; allow QoS 1 there",
                    filter=subscription.filter,
                    granted=code,
                )
        self._keep_granted()
        self._ready(anew=len(self._asked))

    def _ready(self, anew: int) -> None:
        self.ready = True
        log.info("subscribed at the MQTT broker", filters=[s.filter for s in self._wanted], anew=anew)

    def _keep_granted(self) -> None:
        self._granted = {s.filter: s.qos for s in self._wanted}
        self._remember(self._granted)

    def on_disconnected(self, event: Disconnected) -> None:
        """Say why at the first loss, and give up only where trying again cannot help."""
        metrics.CONNECTED.set(0)
        if self._takeover.lost(event, time.monotonic()):
            raise TerminalError(
                f"another process uses the MQTT client id {self.link.client_id!r}: {event.why}",
                remedy="run one ingest worker for each client id: stop the other one, or set mqtt.client_id",
            )
        if event.refused and self.link.epoch == 0:
            raise RefusedError(
                event.why, remedy="check mqtt.username, mqtt.password, mqtt.protocol and mqtt.client_id"
            )
        self._losses += 1
        if self._losses in (1, 10, 100):
            log.warning("no connection to the MQTT broker, trying again; check that it runs", why=event.why)

    def on_message(self, message: Message) -> None:
        """Take one message; see the module's docstring."""
        self._turn_count += 1
        self._turn_bytes += len(message.payload)
        reading = Reading(self.link.epoch, message.mid if message.qos else 0, time.monotonic())
        self._acks.arrived(reading)
        skip = self.settings.ingest.retained == "skip" and message.retain
        route = self._mapper.route(message.topic)
        if skip or isinstance(route, LeftOut) or from_push(message):
            reading.stored = True  # nothing is to be stored
            reason = route.reason if isinstance(route, LeftOut) else "retained" if skip else "command"
            metrics.LEFT_OUT.labels(reason).inc()
            return
        now_ns = time.time_ns()
        reading.payload = message.payload
        reading.event_ms = now_ns // 1_000_000
        reading.properties = properties_of(
            message,
            route if isinstance(route, Route) else None,
            link=self.link.client_id,
            protocol=self.settings.mqtt.protocol,
            arrival_us=now_ns // 1000,
            retained=message.retain and self.settings.ingest.retained == "mark",
        )
        if isinstance(route, NoRoute):
            topic = self.settings.pulsar.readings_topic(route.local) if route.local else ""
            self._dead_letter(reading, topic, route.reason)
        else:
            self._write(reading, route)
        self.in_flight += 1
        self.in_flight_bytes += reading.size + _READING_OVERHEAD
        self._lanes.put(reading)
        if self.in_flight >= self._limit or self.in_flight_bytes >= self.settings.ingest.max_in_flight_bytes:
            self.link.pause()

    def _write(self, reading: Reading, route: Route) -> None:
        topic = self.settings.pulsar.readings_topic(route.local)
        size = size_of(reading.payload, route.key, reading.properties)
        limit = self.settings.ingest.max_message_bytes - PULSAR_RESERVE
        if size > limit:
            self._dead_letter(
                reading, topic, f"payload, key and properties have {size} bytes, Pulsar takes {limit}"
            )
            return
        reading.topic = topic
        reading.key = route.key
        reading.size = size

    def _dead_letter(self, reading: Reading, topic: str, reason: str) -> None:
        """Turn the reading into a dead letter; it is acknowledged once that is stored (H5)."""
        device = reading.properties.get(P_DEVICE, "")
        mqtt_topic = reading.properties[P_TOPIC]
        if self._new_reason(reason):
            log.warning("message goes to the dead letters", mqtt_topic=mqtt_topic[:200], why=reason)
        size = len(reading.payload)
        reading.payload, reading.properties = dead_letter(
            reading.payload,
            topic=topic,
            device=device,
            reason=reason,
            at_us=time.time_ns() // 1000,
            properties=reading.properties,
        )
        if len(reading.payload) < size:
            log.error(
                "a payload was too large for the dead letters too: only its head is kept",
                mqtt_topic=mqtt_topic,
                bytes=size,
            )
        reading.topic = self._dead_topic
        reading.key = device or mqtt_topic[:1000]
        reading.size = len(reading.payload)

    def _new_reason(self, reason: str) -> bool:
        now = time.monotonic()
        if now - self._warned_at < 10.0 and reason == self._warned_reason:
            return False
        self._warned_at, self._warned_reason = now, reason
        return True

    def _refused(self, reading: Reading, reason: str) -> None:
        """Pulsar refused this one message for good: it goes to the dead letters, the rest of its lane goes on."""
        self.in_flight_bytes -= reading.size
        self._dead_letter(reading, reading.topic, reason)
        self.in_flight_bytes += reading.size
        self._lanes.put(reading)

    # --- the end of a turn ---

    def on_turn(self, now: float) -> None:
        """Send what was read, take the receipts, acknowledge, and decide whether to read on."""
        stored = self._lanes.turn(now)
        if stored:
            self.in_flight -= len(stored)
            for reading in stored:
                self.in_flight_bytes -= reading.size + _READING_OVERHEAD
                if reading.topic == self._dead_topic:
                    metrics.DEAD_LETTERS.inc()
            metrics.STORED.inc(len(stored))
        mids = self._acks.take()
        if mids and self.link.acknowledge(mids, self.link.epoch):
            metrics.ACKED.inc(len(mids))
        if self._turn_count:
            metrics.RECEIVED.inc(self._turn_count)
            metrics.RECEIVED_BYTES.inc(self._turn_bytes)
            self._turn_count = self._turn_bytes = 0
        if self.link.paused and not self.draining and self._may_read():
            self.link.resume()
        if now >= self._next_watch:
            self._watch(now)

    def _may_read(self) -> bool:
        # Below three quarters, so that a full window does not stop and start at each receipt.
        return (
            self.in_flight * 4 <= self._limit * 3
            and self.in_flight_bytes * 4 <= self.settings.ingest.max_in_flight_bytes * 3
        )

    def next_in(self, now: float) -> float:
        """How long the loop may wait for bytes, in seconds."""
        return min(1.0, self._lanes.next_in(now))

    def _watch(self, now: float) -> None:
        self._next_watch = now + 1.0
        oldest = self._acks.oldest
        age = now - oldest.arrived if isinstance(oldest, Reading) else 0.0
        metrics.OLDEST_UNACKED.set(age)
        metrics.IN_FLIGHT.set(self.in_flight)
        metrics.IN_FLIGHT_BYTES.set(self.in_flight_bytes)
        metrics.TOPICS.set(self._mapper.topics)
        if age < self.settings.ingest.stall_s:
            if self._stalled:
                log.warning("flowing again, no action needed", after_s=round(now - self._stalled))
                self._stalled = 0.0
            return
        if not self._stalled:
            self._stalled = now - age
            topics = ", ".join(f"{name} ({count})" for name, count in list(self._lanes.blocked())[:3])
            log.warning(
                "Pulsar does not confirm; nothing is lost, acknowledgements wait: check Pulsar and the quota of these",
                topics=topics,
                oldest_s=round(age),
                in_flight=self.in_flight,
            )

    # --- ending ---

    def drain(self, now: float) -> None:
        """Stop reading; turns go on until what was read is stored, or the caller's patience ends."""
        self.draining = True
        self.link.pause()

    def close_lanes(self) -> None:
        """Close the producers. It blocks; call it in a thread."""
        self._lanes.close()
