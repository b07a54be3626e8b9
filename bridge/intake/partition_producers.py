"""The producers of partitions, opened in the background and replaced after the first error.

``bridge.pulsar.acks.ProducerQueue`` decides the meaning of a receipt; this module is its shell. Threads: the ingest loop calls
everything except ``_open`` and the receipts. ``_open`` runs in a small pool, because it blocks. Pulsar's threads
call the receipts, which only append to a deque and wake the loop. A callback must never raise, because the C++ client
would end the process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import structlog

from bridge.backoff import backoff_s
from bridge.contract import base_topic, partition_name
from bridge.contract.partitioning import partition_of
from bridge.dead_letters.blocks import Block
from bridge.errors import (
    DeniedError,
    PulsebridgeError,
    RefusedError,
    TerminatedError,
    TransientError,
)
from bridge.intake.blocking import WAIT, Blocking, BlockingPolicy, Phase, Producer
from bridge.intake.idle import KEEP, IdlePolicy, to_close
from bridge.intake.metrics import LinkMetrics
from bridge.intake.provisioning import TopicMaker
from bridge.intake.readings import Reading, Stalled
from bridge.intake.stalls import Stall
from bridge.pulsar.acks import Entry, ProducerQueue, Verdict
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import PulsarClient
from bridge.pulsar.errors import as_our_error, name_of, names_a_message
from bridge.pulsar.sending import close_quietly
from bridge.pulsar.wire.producer import Identity

__all__ = ["PartitionProducers", "Reading", "Stalled"]

log = structlog.get_logger("ingest")

_RETRY_MIN_S: Final = 0.2
_RETRY_MAX_S: Final = 10.0
_OPENERS: Final = 4


class _PartitionProducer:
    """The messages of a partition, its producer, and the state of its retries."""

    def __init__(self, partition: str, *, most: int, dead_letters: bool) -> None:
        self.partition = partition
        self.dead_letters = dead_letters
        self.unstored = ProducerQueue(most)
        self.producer: Producer | None = None
        self.identity: Identity | None = None
        """The identity of its next producer."""
        self.opening = False
        self.resting = False
        """Closed because no messages came; the next message opens a producer."""
        self.used = 0.0
        self.attempts = 0
        self.retry_at = 0.0
        self.phase: Phase = "open"
        self.diverted = ""
        """The reason why its messages go to the dead letters."""
        self.diverting: deque[Entry] = deque()
        """Messages for the dead letters that may not be stored yet."""
        self.stall = Stall()
        self.trouble = ""
        """The last error of its producer, empty after the next stored message."""


class _Topic:
    """A topic, whose partitions are not known until it is provisioned."""

    def __init__(self) -> None:
        self.partitions = -1
        self.waiting: deque[Reading] = deque()
        self.blocks: dict[int, Block] = {}
        """Blocks that this worker stored before its restart, by partition."""


class PartitionProducers:
    """Writes readings to Pulsar, in order for each partition, and reports the stored ones.

    ``wake`` makes the loop call ``turn``. ``on_refused`` gets a reading that Pulsar refuses for good, with the reason.
    """

    def __init__(
        self,
        client: PulsarClient,
        admin: PulsarAdmin,
        *,
        max_pending: int,
        dead_letter_topic: str,
        metrics: LinkMetrics,
        wake: Callable[[], None],
        on_refused: Callable[[Reading, str], None],
        policy: BlockingPolicy = WAIT,
        idle: IdlePolicy = KEEP,
    ) -> None:
        self._client = client
        self._admin = admin
        self._max_pending = max_pending
        self._dead_letter_topic = dead_letter_topic
        self._metrics = metrics
        self._good = 0  # good receipts of this turn, counted together because each count costs as much as a receipt
        self._wake = wake
        self._on_refused = on_refused
        self._topics: dict[str, _Topic] = {}
        self._flows: dict[str, _PartitionProducer] = {}
        self._dirty: set[_PartitionProducer] = set()
        self._closed: list[_PartitionProducer] = []
        self._receipts: deque[tuple[_PartitionProducer, int, Reading, Any]] = deque()
        self._opened: deque[tuple[_PartitionProducer, Producer | None, PulsebridgeError | None]] = deque()
        self._provisioned: deque[tuple[str, int, dict[int, Block], PulsebridgeError | None]] = deque()
        self._retry_topics: dict[str, tuple[float, int]] = {}
        self._pool = ThreadPoolExecutor(_OPENERS, thread_name_prefix="ingest-producer")
        self._maker = TopicMaker(client, admin, dead_letter_topic)
        self._idle = idle
        self._look_at_idle = 0.0
        self._closing = False
        self._ending = False
        self._diverted: set[_PartitionProducer] = set()
        self._blocking = Blocking(
            client,
            admin,
            policy,
            dead_letter_topic=dead_letter_topic,
            wake=wake,
            retired=self._retired,
            released=self._released,
            remake=self._recreate,
        )

    # --- on the loop thread ---

    def put(self, reading: Reading, flow: _PartitionProducer | None = None) -> _PartitionProducer | None:
        """Queue a reading for ``reading.topic``; its producer gets it at the end of the turn.

        Returns the flow of its topic and key, None while the topic is being created. The caller may pass the flow with
        the next reading of both, to save the look-up.
        """
        if flow is None:
            topic = self._topics.get(reading.topic)
            if topic is None:
                topic = self._topics[reading.topic] = _Topic()
                self._provision(reading.topic, 0)
            if topic.partitions < 0:
                topic.waiting.append(reading)
                return None
            flow = self._flow_of(reading, topic.partitions)
        waiting = flow.unstored.waiting
        if not waiting:
            self._dirty.add(flow)
        waiting.append(reading)
        return flow

    def _flow_of(self, reading: Reading, partitions: int) -> _PartitionProducer:
        name = reading.topic
        if partitions:  # 0: the topic has no partitions
            name = partition_name(name, partition_of(reading.key, partitions))
        flow = self._flows.get(name)
        if flow is None:
            flow = _PartitionProducer(
                name, most=self._max_pending, dead_letters=reading.topic == self._dead_letter_topic
            )
            self._flows[name] = flow
            number = partition_of(reading.key, partitions) if partitions else -1
            block = self._topics[reading.topic].blocks.pop(number, None)
            if block is not None:
                self._blocking.restore(flow, block)
                self._diverted.add(flow)
            else:
                self._closed.append(flow)
        return flow

    def turn(self, now: float) -> list[Reading]:
        """Apply the results of other threads and send. Returns newly stored readings, in order for each partition."""
        stored: list[Reading] = []
        while self._provisioned:
            self._take_topic(*self._provisioned.popleft(), now)
        while self._opened:
            self._take_producer(*self._opened.popleft(), now)
        while self._receipts:
            flow, generation, reading, result = self._receipts.popleft()
            self._take_receipt(flow, generation, reading, result, now, stored)
        if self._good:
            self._metrics.by["receipts", "stored"].inc(self._good)
            self._good = 0
        if self._retry_topics:
            for topic, (due, attempt) in list(self._retry_topics.items()):
                if now >= due:
                    del self._retry_topics[topic]
                    self._provision(topic, attempt)
        if self._blocking.due(now):
            self._blocking.turn(now, list(self._flows.values()))
        if self._closed:
            self._closed = [p for p in self._closed if not self._reopen(p, now)]
        if self._diverted:
            self._divert()
        for flow in self._dirty:
            flow.used = now
            if flow.resting:
                flow.resting = False
                self._closed.append(flow)
            self._send(flow)
        self._dirty.clear()
        if now >= self._look_at_idle and not self._closing:
            self._look_at_idle = now + min(1.0, self._idle.idle_s / 4)
            self._close_idle(now)
        return stored

    def _send(self, flow: _PartitionProducer) -> None:
        batch = flow.unstored.to_send()
        if not batch:
            return
        assert flow.producer is not None
        receipt = self._receipt_of(flow, flow.unstored.generation, batch[-1])  # type: ignore[arg-type]
        flow.producer.send(batch, receipt)  # type: ignore[arg-type]

    def _receipt_of(self, flow: _PartitionProducer, generation: int, reading: Reading) -> Callable[[Any], None]:
        def receipt(result: Any) -> None:
            self._receipts.append((flow, generation, reading, result))
            self._wake()

        return receipt

    def _take_receipt(
        self,
        flow: _PartitionProducer,
        generation: int,
        reading: Reading,
        result: Any,
        now: float,
        stored: list[Reading],
    ) -> None:
        unstored = flow.unstored
        if result is None:
            done = unstored.receipt(generation, reading)
            stored.extend(done)  # type: ignore[arg-type]
            if done:
                self._good += 1
                flow.attempts = 0
                flow.stall.progressed()
                flow.trouble = ""
            else:
                self._metrics.by["receipts", "late"].inc()
            if unstored.waiting:
                self._dirty.add(flow)
            return
        error = as_our_error(result, f"writing to {flow.partition}")
        # An error of the topic does not count against a message, because any message would fail (H4).
        verdict = unstored.failed(
            generation,
            refused=names_a_message(result) and not flow.dead_letters,
            careful=name_of(result) == "ProducerQueueIsFull",
        )
        self._metrics.by["receipts", verdict.name.lower()].inc()
        if verdict is Verdict.LATE:
            return
        if verdict is Verdict.REFUSED:
            refused = unstored.discard()
            assert isinstance(refused, Reading)
            self._on_refused(refused, error.what)
        self._fail(flow, error, now)

    # --- partitions that store nothing ---

    def _divert(self) -> None:
        """Dead-letter the waiting messages of terminated and blocked partitions."""
        for flow in self._diverted:
            while flow.diverting and flow.diverting[0].stored:
                flow.diverting.popleft()
            if flow.phase in ("terminated", "blocked"):
                for reading in flow.unstored.give_up():
                    assert isinstance(reading, Reading)
                    flow.diverting.append(reading)
                    self._on_refused(reading, flow.diverted)

    def _retired(self, flow: _PartitionProducer) -> None:
        flow.unstored.failed(flow.unstored.generation, refused=False)
        flow.producer = None
        if flow in self._closed:
            self._closed.remove(flow)
        self._diverted.add(flow)

    def _released(self, flow: _PartitionProducer) -> None:
        self._diverted.discard(flow)
        flow.attempts, flow.retry_at = 0, 0.0
        if flow not in self._closed:
            self._closed.append(flow)

    def _terminated(self, flow: _PartitionProducer) -> None:
        if flow.phase == "open":
            flow.phase, flow.diverted = "terminated", f"{flow.partition} was terminated"
            self._diverted.add(flow)
            log.warning(
                "topic was terminated, its messages go to the dead letters. Action: delete it, ingest re-creates it, "
                f"then run pulsebridge resend --topic {base_topic(flow.partition)}",
                partition=flow.partition,
            )

    def _fail(self, flow: _PartitionProducer, error: PulsebridgeError, now: float) -> None:
        if isinstance(error, TerminatedError) and not flow.dead_letters:
            self._terminated(flow)
        flow.trouble = str(error)
        wait = backoff_s(flow.attempts, _RETRY_MIN_S, _RETRY_MAX_S, 0.5)
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
            self._pool.submit(self._maker.check_policies)

    # --- opening, in the pool ---

    def _provision(self, topic: str, attempt: int) -> None:
        def work() -> None:
            try:
                count = self._maker.partitions_of(topic)
                self._provisioned.append((topic, count, self._blocking.blocks_of(topic), None))
            except PulsebridgeError as e:
                self._provisioned.append((topic, attempt, {}, e))
            self._wake()

        self._pool.submit(work)

    def _take_topic(
        self, name: str, number: int, blocks: dict[int, Block], error: PulsebridgeError | None, now: float
    ) -> None:
        if error is not None and self._give_up(name, error):
            return
        if error is not None:
            if number == 0:
                log.warning(
                    "topic cannot be created, its messages wait. Action: check Pulsar's admin and the rights of ingest",
                    topic=name,
                    why=str(error),
                )
            self._retry_topics[name] = (now + backoff_s(number, _RETRY_MIN_S, _RETRY_MAX_S, 0.5), number + 1)
            return
        topic = self._topics[name]
        topic.partitions = number
        topic.blocks = blocks
        while topic.waiting:
            self.put(topic.waiting.popleft())

    def _give_up(self, name: str, error: PulsebridgeError) -> bool:
        """Dead-letter the messages of a topic that cannot be created; the next message retries it."""
        if not isinstance(error, RefusedError) or isinstance(error, DeniedError) or name == self._dead_letter_topic:
            return False
        for reading in self._topics.pop(name).waiting:
            self._on_refused(reading, str(error))
        return True

    def _reopen(self, flow: _PartitionProducer, now: float) -> bool:
        if flow.opening or now < flow.retry_at or self._ending or flow.phase == "blocking":
            return False
        flow.opening = True
        old, flow.producer = flow.producer, None
        self._pool.submit(self._open, flow, old)
        return True

    def _open(self, flow: _PartitionProducer, old: Producer | None) -> None:
        if old is not None:
            close_quietly(old)
            flow.identity = old.successor()
        producer: Producer
        try:
            if flow.dead_letters:
                producer = self._client.chunking_producer(flow.partition, max_pending=self._max_pending)
            else:
                producer = self._client.batch_producer(flow.partition, flow.identity)
        except PulsebridgeError as e:
            if isinstance(e, RefusedError) and not isinstance(e, (DeniedError, TerminatedError)):
                self._recreate(base_topic(flow.partition))
            self._opened.append((flow, None, e))
        else:
            self._opened.append((flow, producer, None))
        self._wake()

    def _recreate(self, topic: str) -> None:
        """Re-create a topic that another client deleted, as it was; the next attempt finds it."""
        known = self._topics.get(topic)
        if known is not None and known.partitions >= 0:
            self._maker.recreate(topic, known.partitions)

    def _take_producer(
        self,
        flow: _PartitionProducer,
        producer: Producer | None,
        error: PulsebridgeError | None,
        now: float,
    ) -> None:
        flow.opening = False
        if producer is None:
            assert error is not None
            self._fail(flow, error, now)
            return
        flow.producer = producer
        if flow.phase == "terminated":
            flow.phase = "open"
            self._diverted.discard(flow)
        flow.unstored.reopened()
        self._dirty.add(flow)

    # --- idle producers ---

    def _close_idle(self, now: float) -> None:
        opened = [p for p in self._flows.values() if p.producer is not None]
        idle = ((p.used, p) for p in opened if p.unstored.open and p.phase == "open" and not len(p.unstored))
        old: list[Producer] = []
        for flow in to_close(idle, len(opened), now, self._idle):
            assert flow.producer is not None
            old.append(flow.producer)
            flow.unstored.failed(flow.unstored.generation, refused=False)
            flow.producer, flow.identity, flow.resting = None, None, True
        if old:
            self._closing = True
            self._pool.submit(self._close_all, old)

    def forget_resting(self) -> None:
        """Forget flows without producer and messages, and topics without flows. The caller must not use these flows."""
        kept = {n: p for n, p in self._flows.items() if not p.resting or p.phase != "open" or len(p.unstored)}
        self._flows, used = kept, {base_topic(name) for name in kept}
        self._topics = {n: t for n, t in self._topics.items() if n in used or t.partitions < 0}

    def _close_all(self, old: list[Producer]) -> None:
        for producer in old:
            if not self._ending:  # else closing the connection closes them
                close_quietly(producer)
        self._closing = False

    # --- watching and stopping ---

    def next_in(self, now: float) -> float:
        """How long no retry is due, in seconds."""
        times = [p.retry_at for p in self._closed if not p.opening]
        times += [due for due, _ in self._retry_topics.values()]
        return max(0.0, min(times) - now) if times else 60.0

    @property
    def topics(self) -> list[str]:
        """The full names of the topics written to. Any thread may read them."""
        return list(self._topics)

    @property
    def producers(self) -> int:
        """How many producers are open."""
        return sum(1 for p in self._flows.values() if p.producer is not None)

    @property
    def diverting(self) -> int:
        """How many partitions store nothing, so that their messages go to the dead letters."""
        return sum(1 for p in self._diverted if p.phase in ("terminated", "blocked"))

    @property
    def partitions(self) -> dict[str, int]:
        """The readings topics written to, with their numbers of partitions. Any thread may read them."""
        known = list(self._topics.items())
        return {n: t.partitions for n, t in known if t.partitions >= 0 and n != self._dead_letter_topic}

    def blocked(self) -> Iterator[Stalled]:
        """Yield each topic or partition with messages that are not stored."""
        for name, topic in self._topics.items():
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
        self._ending = True
        self._blocking.close()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for flow in self._flows.values():
            if flow.producer is not None:
                close_quietly(flow.producer)
