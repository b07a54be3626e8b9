"""One session of a partition: the takeover, and the shell around the core. All on one thread.

Order of a takeover (H23); it ends, and starts again as a standby, wherever Pulsar says that we are fenced
--------------------------------------------------------------------------------------------------------
1. The exclusive producer of the cursors partition: Pulsar lets one process have it and fences the former one.
2. MQTT connect with the client id ``<push.client_id>-<partition>``: the broker's session takeover cuts the link of
   a former owner that does not know yet.
3. An owner record, written through that producer: its receipt proves that we are the owner now.
4. The cursors partition, read up to that record: nobody wrote after it but us.
5. The commands subscription, exclusive.
6. What was found outdated, written again, and behind it that our term begins. Then pushes.

When the MQTT connection is lost, step 3 comes before the next attempt and again after it, and nothing is pushed
before the partition was read from the last record that was surely ours up to the new one. For Pulsar's client does
not tell an owner that it was replaced: its producer waits, and is granted access again when the successor leaves,
stale writes included. So a former owner neither cuts its successor's link nor goes on with what it remembers; when
the proof does not come, it gives everything up, the exclusive subscription as well. Every ack comes after a cursor
write's receipt.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import Final

import structlog

from bridge.collector import excluded_objects
from bridge.contract.commands import CommandPosition
from bridge.errors import DeniedError, FencedError, TerminalError, TransientError
from bridge.health import Part
from bridge.killpoints import reach
from bridge.mqtt.client import Link
from bridge.mqtt.types import (
    DISCONNECT_TAKEN_OVER,
    Connected,
    Disconnected,
    LinkHandler,
)
from bridge.mqtt.types import Message as MqttMessage
from bridge.pulsar.client import MessageId
from bridge.push.clock import WallClock
from bridge.push.cursor import OWNER_KEY, OwnerRecord
from bridge.push.doing import Doing
from bridge.push.gate import Gate
from bridge.push.groups.payloads import PayloadCame, Payloads
from bridge.push.hearing import Hearing
from bridge.push.holding import Holding
from bridge.push.limits import limits_of
from bridge.push.metrics import PartitionMetrics
from bridge.push.partition_log import Arrived, Failed, PartitionLog, Stored
from bridge.push.position_tags import PositionTags
from bridge.push.presence_log import Seen
from bridge.push.pulling import Copied, Pulled
from bridge.push.receipt_log import ReceiptsOpened, ReceiptsWritten
from bridge.push.requests import Asked, Found
from bridge.push.resume import ResumingCore
from bridge.push.resuming import ANSWERS_AT_ONCE
from bridge.push.rewriting import CursorsAged, CursorsForgotten, Rewriting
from bridge.push.surely_ours import SurelyOurs
from bridge.push.tracing import TracedDoing
from bridge.settings import Settings
from bridge.unreadable import leave_out

__all__ = ["Session"]

log = structlog.get_logger("push")

_TAKEOVERS_A_MINUTE: Final = 3
_PROOF_S: Final = 5.0
_GATHER_S: Final = 0.005
"""What Pulsar has stored is looked at together: nobody waits for a cursor or a receipt as for a command."""
_SHOWN: Final = 200


class Session(LinkHandler):
    """One time of being the owner, or of waiting for it. All methods but ``post``, ``wake`` and ``owns`` on its thread."""

    def __init__(
        self,
        settings: Settings,
        partition: int,
        metrics: PartitionMetrics,
        part: Part,
        stopping: threading.Event,
        payloads: Payloads,
        trace: str = "",
    ) -> None:
        self._settings = settings
        self._partition = partition
        self._metrics = metrics
        self._part = part
        self._next_watch = 0.0
        metrics.pending_limit.set(settings.push.limits.pending)
        metrics.pending_limit_bytes.set(settings.push.limits.pending_size)
        metrics.in_flight_limit.set(settings.push.limits.window)
        self._stopping = stopping
        self._trace = trace
        self._payloads = payloads
        self._inbox: deque[object] = deque()
        self._token = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex}"
        push = settings.push
        held = push.limits.pending_size
        self._gate = Gate(push.limits.pending, held)
        self._limits = limits_of(push)
        self._holding: Holding | None = None  # beside the core, too
        self._log = PartitionLog(settings.pulsar, partition, gate=self._gate, post=self.post, pulled_bytes=held)
        self._link = Link(
            settings.mqtt,
            self,
            client_id=f"{push.client_id}-{partition}",
            persistent=False,
            window=push.limits.window + ANSWERS_AT_ONCE,
        )
        self._hearing = Hearing(settings, self._log, self._link, metrics.all, self._up_if_ready)
        self._clock = WallClock()
        self._core: ResumingCore | None = None
        self._doing: Doing | None = None  # beside the core, or there is neither
        self._news = threading.Event()  # something was posted
        self._unproven = False  # the link was lost: no further connect before Pulsar confirms that we own
        self._surely_ours = SurelyOurs()
        self._known_since: MessageId | None = None  # the record of ours up to which the cursors were read
        self._serial = 0
        self._had_link = False
        self._proven_epoch = 0  # the connection for which Pulsar has confirmed that we are the owner
        self._taken_over: deque[float] = deque(maxlen=_TAKEOVERS_A_MINUTE)
        self._link_was_lost = False
        self._rewriting = Rewriting(self._log)

    # --- from any thread ---

    @property
    def owns(self) -> bool:
        """Whether it has taken over."""
        return self._core is not None

    def post(self, event: object) -> None:
        """Hand an event to the session's thread."""
        self._inbox.append(event)
        patient = isinstance(event, ReceiptsWritten) or (
            isinstance(event, Stored) and not isinstance(event.token, _Proof)
        )
        if not patient:
            self.wake()

    @property
    def worked(self) -> bool:
        """Whether Pulsar and the MQTT broker both let us in, and the partition was ours."""
        return self._core is not None

    def wake(self) -> None:
        """Let the session look at once what there is to do."""
        self._news.set()
        self._link.wake()

    # --- the session ---

    def run(self) -> None:
        """Wait for ownership, take over, push until stopped, fenced or without a clock to go by (``clock``).

        Raises FencedError or TransientError.
        """
        try:
            if self._own():
                with excluded_objects():
                    ours = self._take_over()
                if ours:
                    self._push_until_stopped()
        finally:
            self._metrics.owner(False)
            self._link.disconnect()
            self._link.close()
            self._log.close()

    def _own(self) -> bool:
        while not self._stopping.is_set():
            self._part.stands_by("another process owns it, or Pulsar is away")
            try:
                self._log.own()
            except TransientError as e:
                log.debug("standby", partition=self._partition, why=str(e))
                self._stopping.wait(0.05)  # a refused lookup answers at once
                continue
            self._part.waits("taking over")
            reach("after_takeover")
            return True
        return False

    def _take_over(self) -> bool:
        # The proof is written by on_connected; it needs no core to be handled.
        if not self._turns_until(lambda: self._proven_epoch > 0):
            return False
        first = OwnerRecord(self._token, 1)
        cursors = self._log.read_cursors(first, self._limits.remembered_ids)
        self._surely_ours.record = self._known_since = cursors.until
        horizon = None
        while True:
            try:
                horizon = self._log.subscribe(self._limits.resume_max)
                break
            except FencedError:
                # The former owner's connection to Pulsar is not known to be dead yet.
                if not self._turns_until(self._after(0.2)):
                    return False
        self._rewriting.taken_over(cursors, horizon)
        core = ResumingCore(
            self._partition,
            self._limits,
            cursors.by_device,
            None if cursors.clean else horizon,
            cursors.parked,
            owner=self._token.rpartition("/")[2],
            now_us=time.time_ns() // 1000,
            left_us=cursors.left_us,
        )
        for key, why in core.unread:
            leave_out(
                self._log.cursors,
                f"the commands that are parked there may be lost; `pulsebridge commands resend` sends them: {why}",
                key=key,
            )
        every_s, now = self._settings.push.offline.relocate_after, time.monotonic()
        self._holding = Holding(core, self._log.puller, horizon, every_s=every_s, now=now)
        self._core = core
        tags = PositionTags(cursors.secret, self._partition)
        parts = (self._settings, core, self._link, self._log, self._gate, self._metrics.all, self._ask, tags)
        self._doing = TracedDoing(*parts, wanted=self._trace) if self._trace else Doing(*parts)
        self._hearing.serve(core, self._doing.answered)
        # Nothing is pushed before this is stored, behind the secret by which the next owner knows our tags.
        self._proven_epoch = 0
        self._write_owner(self._link.epoch)
        self._metrics.all.takeovers.inc()
        self._metrics.owner(True)
        log.info("partition is ours", partition=self._partition, devices=len(cursors.by_device))
        return True

    def _ask(self, position: CommandPosition) -> bytes | None:
        return self._payloads.ask(position, lambda at, payload: self.post(PayloadCame(at, payload)))

    def _after(self, seconds: float) -> Callable[[], bool]:
        end = time.monotonic() + seconds
        return lambda: time.monotonic() >= end

    def _turns_until(self, done: Callable[[], bool]) -> bool:
        while not done():
            if self._stopping.is_set():
                return False
            self._turn(self._rest(0.2))
        return True

    def _turn(self, timeout: float) -> None:
        if self._unproven:
            self._prove()
            return
        self._link.turn(timeout)
        if self._link.connected:
            now, sure = time.monotonic(), self._surely_ours
            sure.answered(self._link.keepalive.answered)
            stored = sure.question(self._log.last_stored, now)
            if stored is not None:
                sure.asked(self._link.ping(), stored, now)

    def _rest(self, most: float) -> float:
        looking = self._holding is not None and self._holding.looking
        return min(most, _GATHER_S) if looking or self._log.writing else most

    def _prove(self) -> None:
        """Have Pulsar confirm that we are the owner, without touching MQTT.

        Raises FencedError when another was in between, TransientError when no answer comes.
        """
        proof = self._write_owner(0)
        end = time.monotonic() + _PROOF_S
        while not proof.stored and not self._stopping.is_set():
            left = end - time.monotonic()
            if left <= 0:
                raise TransientError(
                    f"Pulsar has not confirmed for {_PROOF_S:g} s that partition {self._partition} is ours"
                )
            self._news.wait(left)
            self._news.clear()
            self.on_turn(time.monotonic())
        self._unproven = False

    def _write_owner(self, epoch: int, *, clean: bool = False) -> _Proof:
        self._serial += 1
        proof = _Proof(OwnerRecord(self._token, self._serial, clean), epoch)
        self._log.write_record(OWNER_KEY, proof.record.encode(), proof)
        return proof

    def _proven(self, proof: _Proof) -> None:
        if self._known_since is not None:
            start = self._surely_ours.record or self._known_since
            if self._log.replaced_since(start, proof.record):
                raise FencedError("another process owned it in between")
        proof.stored = True
        if proof.epoch:
            self._proven_epoch = proof.epoch
            self._up_if_ready()

    def _up_if_ready(self) -> None:
        ours = self._link.connected and self._proven_epoch == self._link.epoch
        if self._core is not None and self._doing is not None and ours and self._hearing.ready:
            self._core.link_up(tells_absence=self._hearing.tells_absence)
            self._doing.resuming.link_up()
            self._part.ready()

    def _push_until_stopped(self) -> None:
        core = self._core
        assert core is not None
        while not self._stopping.is_set() and not self._clock.was_set_back(self._partition):
            due = core.next_time_us()
            rest = self._rest(1.0)
            self._turn(rest if due is None else min(rest, max(0.0, due / 1e6 - time.time())))
        self._gate.close()
        self._log.puller.drain()
        core.drain()
        self._rewriting.drain()
        end = time.monotonic() + self._settings.push.drain
        while not core.settled and not self._unproven and time.monotonic() < end:
            self._link.turn(self._rest(0.2))
        if core.clean and not self._unproven:
            proof = self._write_owner(0, clean=True)
            while not proof.stored and not self._unproven and time.monotonic() < end:
                self._link.turn(self._rest(0.2))

    # --- the link's hooks, on this thread ---

    def on_connected(self, event: Connected) -> None:
        """Triggered by CONNACK: prove that we are still the owner before anything is pushed on this connection."""
        if self._link_was_lost:
            self._link_was_lost = False
            log.info("MQTT is back", partition=self._partition)
        if event.maximum_qos < 1:
            remedy = "use one that takes QoS 1: its PUBACK is what push waits for"
            raise DeniedError("the MQTT broker takes QoS 0 alone (Maximum QoS)", remedy=remedy)
        self._had_link = True
        self._metrics.connections.inc()
        self._hearing.connected()
        self._write_owner(event.epoch)

    def on_subscribed(self, codes: list[int]) -> None:
        """Triggered by SUBACK. Raises DeniedError when answers or presence may not be read."""
        self._hearing.subscribed(codes)

    def on_message(self, message: MqttMessage) -> None:
        """Triggered by a PUBLISH to our subscription."""
        self._hearing.heard(message)

    def on_disconnected(self, event: Disconnected) -> None:
        """Triggered by the end of a connection. Raises TerminalError when another process fights for the client id,
        DeniedError when the broker does not let us in; its owner decides whether that ends the process.
        """
        self._unproven = self._unproven or self._had_link
        self._had_link = False
        self._surely_ours.lost()
        self._link.abandon()  # the core decides what goes again, and marks it
        if self._core is not None and self._doing is not None:
            if not event.epoch:
                self._core.broker_away()
            self._core.link_down(time.time_ns() // 1000, closed=self._doing.link_down(event))
        self._part.waits(f"MQTT is away: {event.why}")
        if event.reason == DISCONNECT_TAKEN_OVER:
            now = time.monotonic()
            self._taken_over.append(now)
            if len(self._taken_over) == _TAKEOVERS_A_MINUTE and now - self._taken_over[0] < 60:
                raise TerminalError(
                    f"another process connects to {self._settings.mqtt.host} as {self._link.client_id!r}, and Pulsar "
                    "says that this one is the owner",
                    remedy="give each installation its own push.client_id",
                )
        if event.remedy is not None and not self.worked:
            raise DeniedError(event.why, remedy=event.remedy)
        if not self._link_was_lost:
            self._link_was_lost = True
            log.warning(
                "MQTT is away; " + (event.remedy or "see that the broker is up"),
                partition=self._partition,
                broker=f"{self._settings.mqtt.host}:{self._settings.mqtt.port}",
                why=event.why,
            )

    def on_turn(self, now: float) -> None:
        """Triggered at the end of each turn: handle what came, then do what the core decided."""
        self._part.turned(now)
        while self._inbox:
            self._handle(self._inbox.popleft())
        self._hearing.acknowledge()
        core = self._core
        if core is None:
            return
        now_us = time.time_ns() // 1000
        due = core.next_time_us()
        if due is not None and due <= now_us:
            core.tick(now_us)
        assert self._doing is not None
        for action in core.take(now_us):
            self._doing.do(action)
        self._log.receipts.flush(now)
        self._rewriting.turn(core, now)
        if now >= self._next_watch:
            self._next_watch = now + 1.0
            self._metrics.show(core, now_us)
            self._look_for_overdue(self._doing)
        assert self._holding is not None
        self._holding.turn(now, now_us, sure=self._link.connected and not self._unproven)

    def _look_for_overdue(self, doing: Doing) -> None:
        """A PUBACK that does not come would hold its device and its place in the window for as long as we are connected."""
        topic = doing.overdue() if self._link.connected else None
        if topic is not None:
            log.warning(
                "the MQTT broker does not confirm what we publish, the connection is made anew; see whether it is blocked",
                mqtt_topic=topic[:_SHOWN],
                partition=self._partition,
                after_s=self._settings.push.puback_timeout,
            )
            self._link.drop(f"no PUBACK within {self._settings.push.puback_timeout:g} s")

    # --- events ---

    def _handle(self, event: object) -> None:
        if isinstance(event, Arrived):
            assert self._doing is not None
            self._doing.arrived(event.message)
        elif isinstance(event, Pulled):
            assert self._doing is not None
            self._doing.pulled(event)
        elif isinstance(event, Copied):
            assert self._doing is not None
            self._doing.copied(event)
        elif isinstance(event, Seen):
            self._hearing.seen(event)
        elif isinstance(event, PayloadCame):
            assert self._doing is not None
            self._doing.payload_came(event.position, event.payload)
        elif isinstance(event, Asked):
            assert self._doing is not None
            self._doing.resuming.asked(event)
        elif isinstance(event, Found):
            assert self._doing is not None
            self._doing.resuming.found(event)
            assert self._holding is not None
            self._holding.back()
        elif isinstance(event, Failed):
            raise event.error
        elif isinstance(event, Stored):
            self._log.stored()
            self._stored(event.token)
        elif isinstance(event, ReceiptsWritten):
            for token in self._log.receipts.written(event):
                self._stored(token)
        elif isinstance(event, ReceiptsOpened):
            self._log.receipts.opened(event, time.monotonic())
        elif isinstance(event, (CursorsForgotten, CursorsAged)) and self._core is not None:
            log.info("the cursors are written again", partition=self._partition)
            self._write_owner(0)  # an owner that left no record counts as none
            self._rewriting.begin(event, self._core)

    def _stored(self, token: object) -> None:
        if isinstance(token, _Proof):
            self._proven(token)
        elif token is CursorsForgotten:
            self._rewriting.stored()
        elif self._doing is not None:
            self._doing.stored(token)


class _Proof:
    """Token of an owner record; ``epoch`` is the MQTT connection that it is for, 0 for none."""

    __slots__ = ("epoch", "record", "stored")

    def __init__(self, record: OwnerRecord, epoch: int) -> None:
        self.record = record
        self.epoch = epoch
        self.stored = False
