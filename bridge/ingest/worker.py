"""The ingest worker, which stores one MQTT session in Pulsar. It connects the pure parts.

The path of a message, all on the loop thread:

1. The link delivers it; it joins the queue of messages whose acknowledgement the broker awaits.
2. The intake sends it to Pulsar or leaves it out, and reports in a later turn that it is stored.
3. The acknowledgements at the head of the queue leave, in order of arrival, on the connection of their messages.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from bridge.errors import DeniedError, TerminalError
from bridge.health import Part
from bridge.ingest.session_filters import SessionFilters
from bridge.intake.flow import Reading
from bridge.intake.intake import Intake
from bridge.intake.metrics import SessionMetrics
from bridge.killpoints import reach
from bridge.mqtt.buffered_socket import HEAD_BYTES
from bridge.mqtt.client import Link
from bridge.mqtt.refusals import subscriber, what_to_check
from bridge.mqtt.types import DISCONNECT_TAKEN_OVER, Connected, Disconnected, LinkHandler, Message
from bridge.pulsar.acks import AckQueue
from bridge.settings import Settings

__all__ = ["Credit", "IngestWorker", "check_loss", "packet_limit"]

log = structlog.get_logger("ingest")

_MOST_CREDIT: Final = 65_535
_PATIENCE_S: Final = 5.0


def packet_limit(settings: Settings) -> int:
    """Return the length in bytes above which only the beginning of a PUBLISH is kept.

    A dead letter needs device, length and head of a whole PUBLISH (H5), so this limit only bounds the memory.
    """
    return max(settings.ingest.limits.in_flight_size, settings.ingest.limits.dead_letter_size) + HEAD_BYTES


def check_loss(link: Link, event: Disconnected, losses: int, remedy: str) -> None:
    """Log the first of several losses. Raises TerminalError with ``remedy`` if another process uses the client id.

    Raises DeniedError if the first connection was refused for a cause that a retry cannot fix.
    """
    if event.reason == DISCONNECT_TAKEN_OVER:  # only MQTT 5 brokers report this (H50)
        raise TerminalError(f"another process uses the MQTT client id {link.client_id!r}: {event.why}", remedy=remedy)
    if event.remedy is not None and link.epoch == 0:
        raise DeniedError(event.why, remedy=event.remedy)
    if losses in (1, 10, 100):
        log.warning(
            f"no connection to the MQTT broker, ingest reconnects. Action: {what_to_check(event)}", why=event.why
        )


class Credit:
    """The credit of one session's connections: unacknowledged messages, as Receive Maximum of MQTT 5.

    One window is the right number. But some brokers count messages that a former connection left unacknowledged
    (Artemis 2.40, until it restarts). After a whole window of them they send nothing and report no error, which looks
    like a silent fleet. So a connection to a kept session without messages for a while is replaced by one with twice
    the credit. This does no harm if the fleet is silent. Times are seconds of a monotonic clock.
    """

    def __init__(self, window: int) -> None:
        self.granted = window
        """The Receive Maximum of the next CONNECT."""
        self._patience_s = _PATIENCE_S
        self._due = math.inf
        self._replacing = False

    def connected(self, now: float, *, session_present: bool) -> bool:
        """Begin a connection; a new session has no messages of former ones. Returns whether it replaces one for more credit."""
        replaces, self._replacing = self._replacing, False
        self._due = now + self._patience_s if session_present and self.granted < _MOST_CREDIT else math.inf
        return replaces

    def ended(self) -> None:
        """Note a lost connection or its first message. From that message on, acknowledgements free credit."""
        self._due = math.inf

    def exhausted(self, now: float) -> bool:
        """Whether to reconnect with a larger ``granted``. Each wait is twice as long as the one before."""
        if now < self._due:
            return False
        self._due = math.inf
        self._replacing = True
        self._patience_s *= 2
        self.granted = min(2 * self.granted, _MOST_CREDIT)
        return True


class IngestWorker(LinkHandler):
    """Stores one MQTT session in Pulsar.

    ``make_intake`` is ``Service.intake``, ``name`` the link's name in the envelope, ``part`` its health.
    """

    def __init__(
        self,
        settings: Settings,
        make_intake: Callable[..., Intake],
        *,
        name: str,
        part: Part,
        filters: SessionFilters,
    ) -> None:
        self.settings = settings
        self.link = Link(
            settings.mqtt,
            self,
            receive_maximum=settings.ingest.limits.in_flight,
            max_packet_bytes=packet_limit(settings),
        )
        self.draining = False
        self.ready = False
        """Whether the broker has all subscriptions. Messages published from then on are not missed."""
        self._filters = filters
        self._acks = AckQueue()
        self.intake = make_intake(
            link=name,
            protocol=settings.mqtt.protocol,
            # After a reconnect the broker resends a whole window while the former one is still in flight. A third
            # window waits in the socket.
            limit=2 * settings.ingest.limits.in_flight,
            wake=self.link.wake,
        )
        self.intake.metrics.client_address = f"{settings.mqtt.host}:{settings.mqtt.port}"
        self._part = part
        self._metrics = SessionMetrics(name)
        self._next_watch = 0.0
        self._losses = 0
        self._acknowledged = False  # in the previous turn
        self._silence = math.inf
        """Time after which the first message is late, by the monotonic clock."""
        self._received = False
        self._credit = Credit(settings.ingest.limits.in_flight)

    @property
    def piece(self) -> int:
        """The free part of the window. One read of many small messages must not exceed it."""
        return self.intake.room

    # --- the link's events ---

    def on_connected(self, event: Connected) -> None:
        """Void the acknowledgements of the former connection, and subscribe to missing filters."""
        if event.epoch > 1:
            reach("ingest_in_reconnect")
        self._acks.connected(event.epoch)
        counted = event.session_present and self.settings.mqtt.protocol == "5"
        if not self._credit.connected(time.monotonic(), session_present=counted):
            self._metrics.connections.inc()
        self._losses = 0
        self._metrics.connected.set(1)
        self._part.waits("subscribing")
        if not event.session_present and (event.epoch > 1 or self._filters.granted is not None):
            log.warning(
                "the MQTT broker has lost the session, messages since the last connection are missing. Action: "
                "check the broker's session expiry and persistence",
                client_id=self.link.client_id,
            )
        log.info("connected to the MQTT broker", session_present=event.session_present, epoch=event.epoch)
        subscribe, unsubscribe = self._filters.connected(session_present=event.session_present)
        if unsubscribe:
            self.link.unsubscribe(unsubscribe)
        if subscribe:
            self.link.subscribe(subscribe)
        else:
            if unsubscribe:
                self._filters.store()
            self._ready(new=0)

    def on_subscribed(self, codes: list[int]) -> None:
        """Store the granted filters. Raises DeniedError if the broker refused a required one."""
        self._ready(new=self._filters.subscribed(codes, self.settings.mqtt, self.link.client_id))

    def _ready(self, new: int) -> None:
        self.ready = True
        self._part.ready()
        if not self._received and self._silence == math.inf and self.settings.ingest.silence_warning:
            self._silence = time.monotonic() + self.settings.ingest.silence_warning
        log.info("subscribed at the MQTT broker", filters=self._filters.names, new=new)

    def on_disconnected(self, event: Disconnected) -> None:
        """Log the first loss, and raise only if a retry cannot help."""
        self._metrics.connected.set(0)
        self._credit.ended()
        self._part.waits(f"no connection to the MQTT broker: {event.why}")
        self._losses += 1
        if event.unanswered:
            self._filters.doubt()
        remedy = "run one ingest worker for each client id: stop the other one, or set mqtt.client_id"
        check_loss(self.link, event, self._losses, remedy)

    def on_messages(self, messages: Sequence[Message]) -> None:
        """Take the messages of one read; see the module's docstring."""
        reach("ingest_after_read")
        self._received = True
        self._credit.ended()
        readings = self.intake.take_all(messages, self.link.epoch, time.monotonic())
        self._acks.arrived(*readings)
        if self.intake.full:
            self.link.paused = True

    # --- the end of each turn ---

    def on_turn(self, now: float) -> None:
        """Send messages, process receipts, acknowledge, and decide whether to resume reading."""
        if self._acknowledged:
            self._acknowledged = False
            reach("ingest_after_puback")
        self._part.turned(now)
        self.intake.turn(now)
        if self.intake.in_flight:
            reach("ingest_before_receipt")
        mids = self._acks.take()
        if mids:
            reach("ingest_after_receipt")
        if mids and self.link.acknowledge(mids, self.link.epoch):
            self._acknowledged = True
            self._metrics.acked.inc(len(mids))
        if self.link.paused and not self.draining and self.intake.has_room:
            self.link.paused = False
        if now >= self._next_watch:
            self._next_watch = now + 1.0
            oldest = self._acks.oldest
            self.intake.watch(now, oldest.arrived if isinstance(oldest, Reading) else None)
            if self.ready and not self.draining and self._credit.exhausted(now):
                self._reconnect_with_more_credit()
            if now >= self._silence:
                self._silence = math.inf
                self._report_silence()

    def _reconnect_with_more_credit(self) -> None:
        log.info(
            "no message has come on this connection; ingest reconnects with more credit, because some brokers count "
            "the unacknowledged messages of former connections",
            receive_maximum=self._credit.granted,
        )
        self.link.receive_maximum = self._credit.granted
        self._metrics.connected.set(0)
        self.link.disconnect()

    def _report_silence(self) -> None:
        """Warn of filters that a broker may drop silently: Mosquitto's acl_file refuses no subscription."""
        if not self._received:
            log.warning(
                "no message has come since the subscription. Action: if devices publish, check that the MQTT broker "
                f"lets {subscriber(self.settings.mqtt, self.link.client_id)} read the filters, or correct "
                "ingest.routes and ingest.filters. Mosquitto's acl_file grants every subscription, then drops messages "
                "silently",
                filters=self._filters.names,
                after_s=self.settings.ingest.silence_warning,
            )

    # --- stopping ---

    def drain(self) -> None:
        """Stop reading. The caller continues until all messages are stored, or until its deadline."""
        self.draining = True
        self.link.paused = True
