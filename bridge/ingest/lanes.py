"""The producers: one for each partition written to, opened in the background, replaced after the first error.

What a receipt means is decided by ``bridge.acks.Lane``; this is its shell. Threads: everything is called on the
ingest loop's thread, but ``_open`` (in a small pool, for it blocks) and the receipts (on Pulsar's threads), which
only append to a deque and wake the loop. A callback must never raise: the C++ client would end the process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import structlog

from bridge.acks import Entry, Lane, Verdict
from bridge.contract import base_topic, partition_name
from bridge.dead_letters.blocks import Block
from bridge.errors import (
    DeniedError,
    PulsebridgeError,
    RefusedError,
    TerminatedError,
    TransientError,
)
from bridge.ingest.blocking import WAIT, Blocking, BlockingPolicy, Phase, Producer, close_producer
from bridge.ingest.idle import KEEP, IdlePolicy, to_close
from bridge.ingest.metrics import LinkMetrics
from bridge.ingest.readings import Reading, Stalled
from bridge.ingest.stalls import Stall
from bridge.ingest.topic_making import TopicMaker
from bridge.mqtt.keepalive import backoff_s
from bridge.murmur3 import partition_of
from bridge.pulsar_admin import PulsarAdmin
from bridge.pulsar_client import PulsarClient
from bridge.pulsar_errors import as_our_error, name_of, names_a_message
from bridge.pulsar_wire.producer import Identity

__all__ = ["Lanes", "Reading", "Stalled"]

log = structlog.get_logger("ingest")

_RETRY_MIN_S: Final = 0.2
_RETRY_MAX_S: Final = 10.0
_OPENERS: Final = 4


class _Producing:
    """A lane, its producer and what to do when it failed."""

    def __init__(self, partition: str, *, most: int, dead_letters: bool) -> None:
        self.partition = partition
        self.dead_letters = dead_letters
        self.lane = Lane(most)
        self.producer: Producer | None = None
        self.identity: Identity | None = None
        """What its next producer is to be called."""
        self.opening = False
        self.resting = False
        """Closed for want of messages: the next one opens it."""
        self.used = 0.0
        self.attempts = 0
        self.retry_at = 0.0
        self.phase: Phase = "open"
        self.diverted = ""
        """Why its messages go to the dead letters."""
        self.diverting: deque[Entry] = deque()
        """Those of them that may not be stored there yet."""
        self.stall = Stall()
        self.trouble = ""
        """The last error of its producer, until something was stored."""


class _Topic:
    """A topic whose partitions are not known until it was provisioned."""

    def __init__(self) -> None:
        self.partitions = -1
        self.waiting: deque[Reading] = deque()
        self.blocks: dict[int, Block] = {}
        """Blocks that an earlier life of this worker has left, by partition."""


class Lanes:
    """Writes readings to Pulsar in the order given for each partition, and tells which are stored.

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
        self._good = 0  # receipts of this turn: counting each where it comes would cost as much as taking it
        self._wake = wake
        self._on_refused = on_refused
        self._topics: dict[str, _Topic] = {}
        self._lanes: dict[str, _Producing] = {}
        self._dirty: set[_Producing] = set()
        self._closed: list[_Producing] = []
        self._receipts: deque[tuple[_Producing, int, Reading, Any]] = deque()
        self._opened: deque[tuple[_Producing, Producer | None, PulsebridgeError | None]] = deque()
        self._provisioned: deque[tuple[str, int, dict[int, Block], PulsebridgeError | None]] = deque()
        self._retry_topics: dict[str, tuple[float, int]] = {}
        self._pool = ThreadPoolExecutor(_OPENERS, thread_name_prefix="ingest-producer")
        self._maker = TopicMaker(client, admin, dead_letter_topic)
        self._idle = idle
        self._look_at_idle = 0.0
        self._closing = False
        self._ending = False
        self._diverted: set[_Producing] = set()
        self._blocking = Blocking(
            client,
            admin,
            policy,
            dead_letter_topic=dead_letter_topic,
            wake=wake,
            retired=self._retired,
            released=self._released,
            remake=self._make_again,
        )

    # --- on the loop thread ---

    def put(self, reading: Reading, lane: _Producing | None = None) -> _Producing | None:
        """Take a reading for ``reading.topic``; it is given to its producer at the end of the turn.

        Returns the lane of its topic and key, which may be named with the next reading of both, so that it need not
        be looked for; None while the topic is being made.
        """
        if lane is None:
            topic = self._topics.get(reading.topic)
            if topic is None:
                topic = self._topics[reading.topic] = _Topic()
                self._provision(reading.topic, 0)
            if topic.partitions < 0:
                topic.waiting.append(reading)
                return None
            lane = self._lane_of(reading, topic.partitions)
        waiting = lane.lane.waiting
        if not waiting:
            self._dirty.add(lane)
        waiting.append(reading)
        return lane

    def _lane_of(self, reading: Reading, partitions: int) -> _Producing:
        name = reading.topic
        if partitions:  # 0: somebody made it without partitions
            name = partition_name(name, partition_of(reading.key, partitions))
        producing = self._lanes.get(name)
        if producing is None:
            producing = _Producing(name, most=self._max_pending, dead_letters=reading.topic == self._dead_letter_topic)
            self._lanes[name] = producing
            number = partition_of(reading.key, partitions) if partitions else -1
            block = self._topics[reading.topic].blocks.pop(number, None)
            if block is not None:
                self._blocking.restore(producing, block)
                self._diverted.add(producing)
            else:
                self._closed.append(producing)
        return producing

    def turn(self, now: float) -> list[Reading]:
        """Take what the threads have left, send what waits. Returns the readings that became stored, in lane order."""
        stored: list[Reading] = []
        while self._provisioned:
            self._take_topic(*self._provisioned.popleft(), now)
        while self._opened:
            self._take_producer(*self._opened.popleft(), now)
        while self._receipts:
            producing, generation, reading, result = self._receipts.popleft()
            self._take_receipt(producing, generation, reading, result, now, stored)
        if self._good:
            self._metrics.receipts["stored"].inc(self._good)
            self._good = 0
        if self._retry_topics:
            for topic, (due, attempt) in list(self._retry_topics.items()):
                if now >= due:
                    del self._retry_topics[topic]
                    self._provision(topic, attempt)
        if self._blocking.due(now):
            self._blocking.turn(now, list(self._lanes.values()))
        if self._closed:
            self._closed = [p for p in self._closed if not self._reopen(p, now)]
        if self._diverted:
            self._divert()
        for producing in self._dirty:
            producing.used = now
            if producing.resting:
                producing.resting = False
                self._closed.append(producing)
            self._send(producing)
        self._dirty.clear()
        if now >= self._look_at_idle and not self._closing:
            self._look_at_idle = now + min(1.0, self._idle.idle_s / 4)
            self._rest(now)
        return stored

    def _send(self, producing: _Producing) -> None:
        batch = producing.lane.to_send()
        if not batch:
            return
        assert producing.producer is not None
        receipt = self._receipt_of(producing, producing.lane.generation, batch[-1])  # type: ignore[arg-type]
        producing.producer.send(batch, receipt)  # type: ignore[arg-type]

    def _receipt_of(self, producing: _Producing, generation: int, reading: Reading) -> Callable[[Any], None]:
        def receipt(result: Any) -> None:
            self._receipts.append((producing, generation, reading, result))
            self._wake()

        return receipt

    def _take_receipt(
        self,
        producing: _Producing,
        generation: int,
        reading: Reading,
        result: Any,
        now: float,
        stored: list[Reading],
    ) -> None:
        lane = producing.lane
        if result is None:
            done = lane.receipt(generation, reading)
            stored.extend(done)  # type: ignore[arg-type]
            if done:
                self._good += 1
                producing.attempts = 0
                producing.stall.progressed()
                producing.trouble = ""
            else:
                self._metrics.receipts["late"].inc()
            if lane.waiting:
                self._dirty.add(producing)
            return
        error = as_our_error(result, f"writing to {producing.partition}")
        # What is wrong with the topic is not held against a message: other ones would fare no better (H4).
        verdict = lane.failed(
            generation,
            refused=names_a_message(result) and not producing.dead_letters,
            careful=name_of(result) == "ProducerQueueIsFull",
        )
        self._metrics.receipts[verdict.name.lower()].inc()
        if verdict is Verdict.LATE:
            return
        if verdict is Verdict.REFUSED:
            refused = lane.discard()
            assert isinstance(refused, Reading)
            self._on_refused(refused, error.what)
        self._fail(producing, error, now)

    # --- partitions that take nothing ---

    def _divert(self) -> None:
        """Give what waits for a partition that takes nothing for good, or until a replay, to the dead letters."""
        for producing in self._diverted:
            while producing.diverting and producing.diverting[0].stored:
                producing.diverting.popleft()
            if producing.phase in ("terminated", "blocked"):
                for reading in producing.lane.give_up():
                    assert isinstance(reading, Reading)
                    producing.diverting.append(reading)
                    self._on_refused(reading, producing.diverted)

    def _retired(self, producing: _Producing) -> None:
        producing.lane.failed(producing.lane.generation, refused=False)
        producing.producer = None
        if producing in self._closed:
            self._closed.remove(producing)
        self._diverted.add(producing)

    def _released(self, producing: _Producing) -> None:
        self._diverted.discard(producing)
        producing.attempts, producing.retry_at = 0, 0.0
        if producing not in self._closed:
            self._closed.append(producing)

    def _terminated(self, producing: _Producing) -> None:
        if producing.phase == "open":
            producing.phase, producing.diverted = "terminated", f"{producing.partition} was terminated"
            self._diverted.add(producing)
            log.warning(
                "topic was terminated: its messages go to the dead letters; delete it, then it is made anew, and run "
                f"pulsebridge dead-letters replay --topic {base_topic(producing.partition)}",
                partition=producing.partition,
            )

    def _fail(self, producing: _Producing, error: PulsebridgeError, now: float) -> None:
        if isinstance(error, TerminatedError) and not producing.dead_letters:
            self._terminated(producing)
        producing.trouble = str(error)
        wait = backoff_s(producing.attempts, _RETRY_MIN_S, _RETRY_MAX_S, 0.5)
        producing.attempts += 1
        producing.retry_at = now + wait
        if producing not in self._closed:
            self._closed.append(producing)
        # A topic that moved, or a connection that was lost and has said so, is no news of its own.
        passing = isinstance(error, TransientError) and error.remedy is None
        if producing.attempts in ((10,) if passing else (1, 10)) and producing.phase == "open":
            log.warning(
                "producer given up; its messages are sent again by another, nothing is acknowledged before: check the "
                "partition's topic if this goes on",
                partition=producing.partition,
                why=str(error),
                unstored=len(producing.lane),
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
                    "topic cannot be made, its messages wait; check Pulsar's admin and our rights there",
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
        """Dead-letter what waits for a topic that nobody will make; the next message asks for the topic again."""
        if not isinstance(error, RefusedError) or isinstance(error, DeniedError) or name == self._dead_letter_topic:
            return False
        for reading in self._topics.pop(name).waiting:
            self._on_refused(reading, str(error))
        return True

    def _reopen(self, producing: _Producing, now: float) -> bool:
        if producing.opening or now < producing.retry_at or self._ending or producing.phase == "blocking":
            return False
        producing.opening = True
        old, producing.producer = producing.producer, None
        self._pool.submit(self._open, producing, old)
        return True

    def _open(self, producing: _Producing, old: Producer | None) -> None:
        if old is not None:
            close_producer(old)
            producing.identity = old.successor()
        producer: Producer
        try:
            if producing.dead_letters:
                producer = self._client.chunking_producer(producing.partition, max_pending=self._max_pending)
            else:
                producer = self._client.batch_producer(producing.partition, producing.identity)
        except PulsebridgeError as e:
            if isinstance(e, RefusedError) and not isinstance(e, (DeniedError, TerminatedError)):
                self._make_again(base_topic(producing.partition))
            self._opened.append((producing, None, e))
        else:
            self._opened.append((producing, producer, None))
        self._wake()

    def _make_again(self, topic: str) -> None:
        """Make a topic that was deleted behind our back, as it was; the next attempt finds it."""
        known = self._topics.get(topic)
        if known is not None and known.partitions >= 0:
            self._maker.make_again(topic, known.partitions)

    def _take_producer(
        self,
        producing: _Producing,
        producer: Producer | None,
        error: PulsebridgeError | None,
        now: float,
    ) -> None:
        producing.opening = False
        if producer is None:
            assert error is not None
            self._fail(producing, error, now)
            return
        producing.producer = producer
        if producing.phase == "terminated":
            producing.phase = "open"
            self._diverted.discard(producing)
        producing.lane.reopened()
        self._dirty.add(producing)

    # --- producers that nobody needs ---

    def _rest(self, now: float) -> None:
        opened = [p for p in self._lanes.values() if p.producer is not None]
        idle = ((p.used, p) for p in opened if p.lane.open and p.phase == "open" and not len(p.lane))
        old: list[Producer] = []
        for producing in to_close(idle, len(opened), now, self._idle):
            assert producing.producer is not None
            old.append(producing.producer)
            producing.lane.failed(producing.lane.generation, refused=False)
            producing.producer, producing.identity, producing.resting = None, None, True
        if old:
            self._closing = True
            self._pool.submit(self._close_all, old)

    def forget_resting(self) -> None:
        """Forget lanes without producer and messages, and topics without lanes. No reading may name their lanes then."""
        kept = {n: p for n, p in self._lanes.items() if not p.resting or p.phase != "open" or len(p.lane)}
        self._lanes, used = kept, {base_topic(name) for name in kept}
        self._topics = {n: t for n, t in self._topics.items() if n in used or t.partitions < 0}

    def _close_all(self, old: list[Producer]) -> None:
        for producer in old:
            if not self._ending:  # then the connection is closed, and they with it
                close_producer(producer)
        self._closing = False

    # --- watching and ending ---

    def next_in(self, now: float) -> float:
        """How long nothing is to be tried again, in seconds."""
        times = [p.retry_at for p in self._closed if not p.opening]
        times += [due for due, _ in self._retry_topics.values()]
        return max(0.0, min(times) - now) if times else 60.0

    @property
    def topics(self) -> list[str]:
        """The full names of the topics that were written to. From any thread."""
        return list(self._topics)

    @property
    def producers(self) -> int:
        """How many producers are open."""
        return sum(1 for p in self._lanes.values() if p.producer is not None)

    @property
    def diverting(self) -> int:
        """How many partitions take nothing, so that their messages go to the dead letters."""
        return sum(1 for p in self._diverted if p.phase in ("terminated", "blocked"))

    @property
    def partitions(self) -> dict[str, int]:
        """The readings topics that are written to, with their numbers of partitions. From any thread."""
        known = list(self._topics.items())
        return {n: t.partitions for n, t in known if t.partitions >= 0 and n != self._dead_letter_topic}

    def blocked(self) -> Iterator[Stalled]:
        """Yield each topic or partition with messages that are not stored."""
        for name, topic in self._topics.items():
            if topic.waiting:
                yield Stalled(name, len(topic.waiting), topic.waiting[0].arrived, "it is not made yet")
        for name, producing in self._lanes.items():
            oldest = producing.lane.oldest
            if oldest is not None:
                assert isinstance(oldest, Reading)
                why = "a replay of its dead letters is under way"
                if producing.phase not in ("releasing", "held"):
                    why = producing.stall.why or producing.trouble
                yield Stalled(name, len(producing.lane), oldest.arrived, why)

    def close(self) -> None:
        """Close every producer. Call it in a thread: it waits for Pulsar. What is not stored is dropped unacknowledged."""
        self._ending = True
        self._blocking.close()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for producing in self._lanes.values():
            if producing.producer is not None:
                close_producer(producing.producer)
