"""The producers of partitions, opened in the background and replaced after the first error.

``bridge.pulsar.acks.ProducerQueue`` decides the meaning of a receipt; this module is its shell. Threads: the ingest loop
calls everything except the receipts. Pulsar's threads call these; they only append to a deque and wake the loop. A
callback must never raise, because the C++ client would end the process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

import structlog

from bridge.backoff import backoff_s
from bridge.contract import DEAD_LETTERS_TOPIC, base_topic, partition_name
from bridge.contract.partitioning import partition_of
from bridge.errors import PulsebridgeError, TerminatedError, TransientError
from bridge.intake.background import Background
from bridge.intake.blocking import Blocking
from bridge.intake.flow import Flow, Producer, Reading, Stalled
from bridge.intake.metrics import LinkMetrics
from bridge.intake.producer_opener import ProducerOpener, to_close
from bridge.intake.topics import RETRY_MAX_S, RETRY_MIN_S, Topics
from bridge.pulsar.acks import Verdict
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import PulsarClient
from bridge.pulsar.errors import as_our_error, name_of, names_a_message
from bridge.pulsar.wire.producer import BatchProducer
from bridge.settings.ingest import IngestSettings

__all__ = ["PartitionProducers"]

log = structlog.get_logger("ingest")

_OPENERS: Final = 4


class PartitionProducers:
    """Writes readings to Pulsar, in order for each partition, and reports the stored ones.

    ``wake`` makes the loop call ``turn``. ``on_refused`` gets a reading that Pulsar refuses for good, with the reason.
    ``owner`` is the worker's name in its blocks.
    """

    def __init__(
        self,
        client: PulsarClient,
        admin: PulsarAdmin,
        ingest: IngestSettings,
        *,
        owner: str,
        max_pending: int,
        metrics: LinkMetrics,
        wake: Callable[[], None],
        on_refused: Callable[[Reading, str], None],
    ) -> None:
        self._limits = ingest.limits
        self._max_pending = max_pending
        self._dead_letter_topic = admin.settings.system_topic(DEAD_LETTERS_TOPIC)
        self._metrics = metrics
        self._wake = wake
        self._on_refused = on_refused
        self._flows: dict[str, Flow] = {}
        self._dirty: set[Flow] = set()
        self._closed: list[Flow] = []
        self._receipts: deque[tuple[Flow, int, Reading, Any]] = deque()
        self._look_at_idle = 0.0
        self._diverted: set[Flow] = set()
        background = Background(_OPENERS, "ingest-producer", wake)
        self.topics = Topics(
            client,
            admin,
            background,
            blocks_of=lambda topic: self._blocking.blocks_of(topic),
            put=self.put,
            on_refused=on_refused,
        )
        self._opener = ProducerOpener(
            client,
            background,
            max_pending=max_pending,
            recreate=self.topics.recreate,
            opened=self._take_producer,
        )
        self._blocking = Blocking(
            client,
            admin,
            ingest,
            background,
            owner=owner,
            retired=self._retired,
            released=self._released,
            remake=self.topics.recreate,
        )

    # --- on the loop thread ---

    def put(self, reading: Reading, flow: Flow | None = None) -> Flow | None:
        """Queue a reading for ``reading.topic``; its producer gets it at the end of the turn.

        Returns the flow of its topic and key, None while the topic is being created. The caller may pass the flow with
        the next reading of both, to save the look-up.
        """
        if flow is None:
            topic = self.topics.by_name.get(reading.topic) or self.topics.add(reading.topic)
            if topic.partitions < 0:
                topic.waiting.append(reading)
                return None
            flow = self._flow_of(reading, topic.partitions)
        waiting = flow.unstored.waiting
        if not waiting:
            self._dirty.add(flow)
        waiting.append(reading)
        return flow

    def _flow_of(self, reading: Reading, partitions: int) -> Flow:
        name = reading.topic
        if partitions:  # 0: the topic has no partitions
            name = partition_name(name, partition_of(reading.key, partitions))
        flow = self._flows.get(name)
        if flow is None:
            flow = Flow(name, most=self._max_pending, dead_letters=reading.topic == self._dead_letter_topic)
            self._flows[name] = flow
            number = partition_of(reading.key, partitions) if partitions else -1
            block = self.topics.by_name[reading.topic].blocks.pop(number, None)
            if block is not None:
                self._blocking.restore(flow, block)
                self._diverted.add(flow)
            else:
                self._closed.append(flow)
        return flow

    def turn(self, now: float) -> list[Reading]:
        """Apply the results of other threads and send. Returns newly stored readings, in order for each partition."""
        stored: list[Reading] = []
        good = 0  # counted together, because each count costs as much as a receipt
        while self._receipts:
            flow, generation, reading, result = self._receipts.popleft()
            good += self._take_receipt(flow, generation, reading, result, now, stored)
        if good:
            self._metrics.by["receipts", "stored"].inc(good)
        self._opener.background.turn(now)  # after the receipts, because a blocked partition ends its producer
        self.topics.turn(now)
        if now >= self._blocking.due:
            self._blocking.turn(now, self._flows)
        if self._closed:
            self._closed = [p for p in self._closed if not self._opener.reopen(p, now)]
        if self._diverted:
            self._divert()
        for flow in self._dirty:
            flow.used = now
            if flow.resting:
                flow.resting = False
                self._closed.append(flow)
            self._send(flow)
        self._dirty.clear()
        if now >= self._look_at_idle and not self._opener.closing:
            self._look_at_idle = now + min(1.0, self._limits.producer_idle / 4)
            self._close_idle(now)
        return stored

    def _send(self, flow: Flow) -> None:
        batch = flow.unstored.to_send()
        if not batch:
            return
        assert flow.producer is not None
        receipt = self._receipt_of(flow, flow.unstored.generation, batch[-1])  # type: ignore[arg-type]
        flow.producer.send(batch, receipt)  # type: ignore[arg-type]

    def _receipt_of(self, flow: Flow, generation: int, reading: Reading) -> Callable[[Any], None]:
        def receipt(result: Any) -> None:
            self._receipts.append((flow, generation, reading, result))
            self._wake()

        return receipt

    def _take_receipt(
        self,
        flow: Flow,
        generation: int,
        reading: Reading,
        result: Any,
        now: float,
        stored: list[Reading],
    ) -> bool:
        """Process a receipt. Returns whether it confirms messages."""
        unstored = flow.unstored
        if result is None:
            done: list[Any] = unstored.receipt(generation, reading)
            stored.extend(done)
            if done:
                flow.attempts = 0
                flow.stall.progressed()
                flow.trouble = ""
                if isinstance(flow.producer, BatchProducer):
                    self._metrics.stored_at(flow.producer.broker, done)
            else:
                self._metrics.by["receipts", "late"].inc()
            if unstored.waiting:
                self._dirty.add(flow)
            return bool(done)
        error = as_our_error(result, f"writing to {flow.partition}")
        # An error of the topic does not count against a message, because any message would fail (H4).
        verdict = unstored.failed(
            generation,
            refused=names_a_message(result) and not flow.dead_letters,
            careful=name_of(result) == "ProducerQueueIsFull",
        )
        self._metrics.by["receipts", verdict.name.lower()].inc()
        if verdict is Verdict.LATE:
            return False
        if verdict is Verdict.REFUSED:
            refused = unstored.discard()
            assert isinstance(refused, Reading)
            self._on_refused(refused, error.what)
        self._fail(flow, error, now)
        return False

    # --- partitions that store nothing ---

    def _divert(self) -> None:
        """Dead-letter the waiting messages of terminated and blocked partitions."""
        for flow in self._diverted:
            flow.forget_stored()
            if flow.phase in ("terminated", "blocked"):
                for reading in flow.unstored.give_up():
                    assert isinstance(reading, Reading)
                    flow.diverting.append(reading)
                    self._on_refused(reading, flow.diverted)

    def _retired(self, flow: Flow) -> None:
        flow.unstored.failed(flow.unstored.generation, refused=False)
        flow.producer = None
        if flow in self._closed:
            self._closed.remove(flow)
        self._diverted.add(flow)

    def _released(self, flow: Flow) -> None:
        self._diverted.discard(flow)
        flow.attempts, flow.retry_at = 0, 0.0
        if flow not in self._closed:
            self._closed.append(flow)

    def _terminated(self, flow: Flow) -> None:
        if flow.phase == "open":
            flow.phase, flow.diverted = "terminated", f"{flow.partition} was terminated"
            self._diverted.add(flow)
            log.warning(
                "topic was terminated, its messages go to the dead letters. Action: delete it, ingest re-creates it, "
                f"then run pulsebridge resend --topic {base_topic(flow.partition)}",
                partition=flow.partition,
            )

    def _fail(self, flow: Flow, error: PulsebridgeError, now: float) -> None:
        if isinstance(error, TerminatedError) and not flow.dead_letters:
            self._terminated(flow)
        flow.trouble = str(error)
        wait = backoff_s(flow.attempts, RETRY_MIN_S, RETRY_MAX_S, 0.5)
        flow.attempts += 1
        flow.retry_at = now + wait
        if flow not in self._closed:
            self._closed.append(flow)
        # A moved topic, or a lost connection that is logged already, is not logged at the first attempt.
        passing = isinstance(error, TransientError) and error.remedy is None
        if flow.attempts in ((10,) if passing else (1, 10)) and flow.phase == "open":
            log.warning(
                "producer failed; another one resends its messages, nothing is acknowledged before. Action: check the "
                "partition's topic if this persists",
                partition=flow.partition,
                why=str(error),
                unstored=len(flow.unstored),
            )
            self._opener.background.submit(self.topics.check_policies)

    # --- opening and closing ---

    def _take_producer(self, flow: Flow, result: Producer | PulsebridgeError, now: float) -> None:
        flow.opening = False
        if isinstance(result, PulsebridgeError):
            self._fail(flow, result, now)
            return
        flow.producer = result
        if flow.phase == "terminated":
            flow.phase = "open"
            self._diverted.discard(flow)
        flow.unstored.reopened()
        self._dirty.add(flow)

    def _close_idle(self, now: float) -> None:
        opened = [p for p in self._flows.values() if p.producer is not None]
        idle = ((p.used, p) for p in opened if p.unstored.open and p.phase == "open" and not len(p.unstored))
        old: list[Producer] = []
        for flow in to_close(idle, len(opened), now, self._limits.producer_idle, self._limits.producers):
            assert flow.producer is not None
            old.append(flow.producer)
            flow.unstored.failed(flow.unstored.generation, refused=False)
            flow.producer, flow.identity, flow.resting = None, None, True
        if old:
            self._opener.close_idle(old)

    def forget_resting(self) -> None:
        """Forget flows without producer and messages, and topics without flows. The caller must not use these flows."""
        kept = {n: p for n, p in self._flows.items() if not p.resting or p.phase != "open" or len(p.unstored)}
        self._flows = kept
        self.topics.forget_unused({base_topic(name) for name in kept})

    # --- watching and stopping ---

    def next_in(self, now: float) -> float:
        """How long no retry is due, in seconds."""
        times = [p.retry_at for p in self._closed if not p.opening] + self.topics.retry_times
        return max(0.0, min(times) - now) if times else 60.0

    @property
    def producers(self) -> int:
        """How many producers are open."""
        return sum(1 for p in self._flows.values() if p.producer is not None)

    @property
    def diverting(self) -> int:
        """How many partitions store nothing, so that their messages go to the dead letters."""
        return sum(1 for p in self._diverted if p.phase in ("terminated", "blocked"))

    def blocked(self) -> Iterator[Stalled]:
        """Yield each topic or partition with messages that are not stored."""
        for name, topic in self.topics.by_name.items():
            if topic.waiting:
                yield Stalled(name, len(topic.waiting), topic.waiting[0].arrived, "it is not created yet")
        for name, flow in self._flows.items():
            oldest = flow.unstored.oldest
            if oldest is not None:
                assert isinstance(oldest, Reading)
                why = "a replay of its dead letters is under way"
                if flow.phase not in ("releasing", "drained"):
                    why = flow.stall.why or flow.trouble
                yield Stalled(name, len(flow.unstored), oldest.arrived, why)

    def close(self) -> None:
        """Close every producer. It waits for Pulsar: call it in a thread. Unstored readings are not acknowledged."""
        self._opener.ending = True
        self._blocking.close()
        self._opener.close(self._flows.values())
