"""The ingest worker: one MQTT session into Pulsar. It joins the pure parts and decides nothing that they decide.

The way of a message, all on the loop thread:

1. The link hands it over; it joins the queue of those that the broker waits for.
2. The intake gives it to Pulsar, or leaves it out, and says in a later turn that it is stored.
3. The acknowledgements at the head of the queue leave, in order of arrival, on the connection of their messages.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import structlog

from bridge.acks import AckQueue
from bridge.errors import DeniedError, TerminalError
from bridge.health import Part
from bridge.ingest.credit import Credit
from bridge.ingest.intake import Intake
from bridge.ingest.lanes import Reading
from bridge.ingest.metrics import SessionMetrics
from bridge.ingest.session import plan_session
from bridge.killpoints import reach
from bridge.mqtt.buffered_socket import HEAD_BYTES
from bridge.mqtt.client import Link
from bridge.mqtt.refusals import subscriber, subscription_remedy, what_to_check
from bridge.mqtt.types import (
    DISCONNECT_TAKEN_OVER,
    Connected,
    Disconnected,
    LinkHandler,
    Message,
    Subscription,
)
from bridge.settings import Settings
from bridge.topic_rules import resume_filter

__all__ = ["IngestWorker", "in_flight_limit", "packet_limit"]

log = structlog.get_logger("ingest")


def in_flight_limit(settings: Settings) -> int:
    """Return at how many messages that are not stored reading stops.

    Twice the window: after a reconnect the broker sends a whole window again while the one before is still on its
    way into Pulsar. A third waits in the socket.
    """
    return 2 * settings.ingest.max_in_flight


def packet_limit(settings: Settings) -> int:
    """Return the length in bytes from which on only the beginning of a PUBLISH is kept.

    A whole one gives its device, length and head to its dead letter (H5), so only the memory is bounded here.
    """
    return max(settings.ingest.max_in_flight_bytes, settings.ingest.max_dead_letter_bytes) + HEAD_BYTES


class IngestWorker(LinkHandler):
    """One MQTT session into Pulsar. ``granted`` are the filters that the broker's session had last, None unknown.

    ``make_intake`` is ``Service.intake``, ``name`` what the envelope tells of the link, ``part`` its health.
    ``remember`` is called with the filters and their QoS once the broker has granted them; it must not block.
    """

    def __init__(
        self,
        settings: Settings,
        make_intake: Callable[..., Intake],
        *,
        name: str,
        part: Part,
        wanted: tuple[Subscription, ...],
        granted: dict[str, int] | None = None,
        remember: Callable[[dict[str, int]], None] = lambda _filters: None,
    ) -> None:
        self.settings = settings
        self.link = Link(
            settings.mqtt,
            self,
            receive_maximum=settings.ingest.max_in_flight,
            max_packet_bytes=packet_limit(settings),
        )
        self.draining = False
        self.ready = False
        """Whether the broker has all subscriptions: what is published from then on is not missed."""
        self._wanted = wanted
        self._granted = granted
        self._asked: tuple[Subscription, ...] = ()
        asks = resume_filter(settings.ingest)
        self._optional = set() if asks is None else {asks.mqtt}
        """Filters without which readings come all the same."""
        self._refused: set[str] = set()
        self._remember = remember
        self._acks = AckQueue()
        self._intake = make_intake(
            link=name,
            protocol=settings.mqtt.protocol,
            limit=in_flight_limit(settings),
            wake=self.link.wake,
        )
        self._part = part
        self._metrics = SessionMetrics(name)
        self._next_watch = 0.0
        self._losses = 0
        self._acknowledged = False  # in the turn before
        self._silence = math.inf
        """When the first message is late, by the monotonic clock."""
        self._heard = False
        self._credit = Credit(settings.ingest.max_in_flight)

    @property
    def in_flight(self) -> int:
        """Messages that are not known to be stored, of all connections."""
        return self._intake.in_flight

    @property
    def piece(self) -> int:
        """What the window still holds, so that one read of many small messages does not exceed it."""
        return self._intake.room

    # --- the link's events ---

    def on_connected(self, event: Connected) -> None:
        """Void the acknowledgements of the connection before, and subscribe to what the session lacks."""
        if event.epoch > 1:
            reach("ingest_in_reconnect")
        self._acks.connected(event.epoch)
        counted = event.session_present and self.settings.mqtt.protocol == "5"
        self._credit.connected(time.monotonic(), session_present=counted)
        self._losses = 0
        self._metrics.connections.inc()
        self._metrics.connected.set(1)
        self._part.waits("subscribing")
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
        """Keep what was granted. Raises DeniedError when the broker refused a filter."""
        self._refused.clear()
        for subscription, code in zip(self._asked, codes, strict=False):
            if code >= 0x80 and subscription.filter in self._optional:
                self._refused.add(subscription.filter)
                log.warning(
                    "the MQTT broker lets no device ask where to go on; allow "
                    f"{subscriber(self.settings.mqtt, self.link.client_id)} to read it, or set ingest.resume_topic to null",
                    filter=subscription.filter,
                )
                continue
            if code >= 0x80:
                raise DeniedError(
                    f"the MQTT broker refused the subscription to {subscription.filter!r} (code {code:#x})",
                    remedy=f"{subscription_remedy(self.settings.mqtt, self.link.client_id)}, or take it out of ingest.rules "
                    "and ingest.filters",
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
        self._part.ready()
        if not self._heard and self._silence == math.inf and self.settings.ingest.silent_s:
            self._silence = time.monotonic() + self.settings.ingest.silent_s
        log.info("subscribed at the MQTT broker", filters=[s.filter for s in self._wanted], anew=anew)

    def _keep_granted(self) -> None:
        self._granted = {s.filter: s.qos for s in self._wanted if s.filter not in self._refused}
        self._remember(self._granted)

    def on_disconnected(self, event: Disconnected) -> None:
        """Say why at the first loss, and give up only where trying again cannot help."""
        self._metrics.connected.set(0)
        self._credit.ended()
        self._part.waits(f"no connection to the MQTT broker: {event.why}")
        if event.reason == DISCONNECT_TAKEN_OVER:  # before MQTT 5 no broker says so (H50)
            raise TerminalError(
                f"another process uses the MQTT client id {self.link.client_id!r}: {event.why}",
                remedy="run one ingest worker for each client id: stop the other one, or set mqtt.client_id",
            )
        if event.remedy is not None and self.link.epoch == 0:
            raise DeniedError(event.why, remedy=event.remedy)
        self._losses += 1
        if self._losses in (1, 10, 100):
            log.warning(
                f"no connection to the MQTT broker, trying again; {what_to_check(event)}",
                why=event.why,
            )

    def on_messages(self, messages: Sequence[Message]) -> None:
        """Take what was read in one piece; see the module's docstring."""
        self._heard = True
        self._credit.ended()
        readings = self._intake.take_all(messages, self.link.epoch, time.monotonic())
        self._acks.arrived_all(readings)
        if self._intake.full:
            self.link.pause()

    # --- the end of a turn ---

    def on_turn(self, now: float) -> None:
        """Send what was read, take the receipts, acknowledge, and decide whether to read on."""
        if self._acknowledged:
            self._acknowledged = False
            reach("ingest_after_puback")
        self._part.turned(now)
        self._intake.turn(now)
        if self._intake.in_flight:
            reach("ingest_before_receipt")
        mids = self._acks.take()
        if mids:
            reach("ingest_after_receipt")
        if mids and self.link.acknowledge(mids, self.link.epoch):
            self._acknowledged = True
            self._metrics.acked.inc(len(mids))
        if self.link.paused and not self.draining and self._intake.has_room:
            self.link.resume()
        if now >= self._next_watch:
            self._next_watch = now + 1.0
            oldest = self._acks.oldest
            self._intake.watch(now, oldest.arrived if isinstance(oldest, Reading) else None)
            if self.ready and not self.draining and self._credit.exhausted(now):
                self._dial_with_more_credit()
            if now >= self._silence:
                self._silence = math.inf
                self._tell_silence()

    def _dial_with_more_credit(self) -> None:
        log.info(
            "no message has come on this connection; it is made anew with more credit, for some brokers count what former "
            "connections left unacknowledged",
            receive_maximum=self._credit.granted,
        )
        self.link.receive_maximum = self._credit.granted
        self._metrics.connected.set(0)
        self.link.disconnect()

    def _tell_silence(self) -> None:
        """Name what a broker may hold back without a word: Mosquitto's acl_file refuses no subscription."""
        if not self._heard:
            log.warning(
                "no message has come since the subscription; if devices do publish, see that the MQTT broker lets "
                f"{subscriber(self.settings.mqtt, self.link.client_id)} read the filters (Mosquitto's acl_file grants every "
                "subscription and then holds back what may not be read), or correct ingest.rules and ingest.filters",
                filters=[s.filter for s in self._wanted],
                after_s=self.settings.ingest.silent_s,
            )

    def next_in(self, now: float) -> float:
        """How long the loop may wait for bytes, in seconds."""
        return self._intake.next_in(now)

    # --- ending ---

    def drain(self, now: float) -> None:
        """Stop reading; turns go on until what was read is stored, or the caller's patience ends."""
        self.draining = True
        self.link.pause()
