"""Ordered acknowledgement: no sequence of receipts, errors, reconnects and late acks acknowledges what is not stored."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bridge.pulsar.acks import AckQueue, Entry, ProducerQueue, Verdict


@dataclass
class FakePulsar:
    """A producer's other side: stores in order, or refuses silently, and only then may answer Ok again."""

    generation: int
    pending: list[tuple[Entry, bool]] = field(default_factory=list)  # (message, it asks for a receipt)
    broken: bool = False


class Ingest(RuleBasedStateMachine):
    """Random events; the truth about what is stored is kept beside the code under test."""

    @initialize()
    def begin(self) -> None:
        self.acks = AckQueue()
        self.queues = [ProducerQueue(), ProducerQueue(most=3)]
        self.pulsar: list[FakePulsar | None] = [None, None]
        self.epoch = 0
        self.mid = 0
        self.truly_stored: set[int] = set()
        self.log: list[list[Entry]] = [[], []]
        self.arrivals: list[Entry] = []
        self.arrived_in: list[list[Entry]] = [[], []]
        self.acked: list[Entry] = []
        self.receipts: list[tuple[int, int, Entry, bool]] = []
        self.connect()

    @rule()
    def connect(self) -> None:
        self.epoch += 1
        self.mid = 0
        self.arrivals = []
        self.acked = []
        self.acks.connected(self.epoch)

    @rule(queue=st.integers(0, 1), qos=st.integers(0, 1))
    def arrive(self, queue: int, qos: int) -> None:
        self.mid += 1
        entry = Entry(self.epoch, self.mid if qos else 0)
        self.acks.arrived(entry)
        self.queues[queue].put(entry)
        self.arrivals.append(entry)
        self.arrived_in[queue].append(entry)

    @rule()
    def arrive_from_an_old_connection(self) -> None:
        self.acks.arrived(Entry(self.epoch - 1, 9999))

    @rule(queue=st.integers(0, 1))
    def open(self, queue: int) -> None:
        if not self.queues[queue].open:
            self.pulsar[queue] = FakePulsar(self.queues[queue].reopened())

    @rule(queue=st.integers(0, 1))
    def send(self, queue: int) -> None:
        batch = self.queues[queue].to_send()
        assert sum(map(len, self.queues[1].sent)) <= 3, "more given than a producer's queue holds"
        producer = self.pulsar[queue]
        for entry in batch:
            assert producer is not None
            producer.pending.append((entry, entry is batch[-1]))

    @rule(queue=st.integers(0, 1), count=st.integers(1, 5))
    def store(self, queue: int, count: int) -> None:
        producer = self.pulsar[queue]
        for _ in range(count):
            if producer is None or not producer.pending or producer.broken:
                return
            entry, asks = producer.pending.pop(0)
            self.truly_stored.add(id(entry))
            self.log[queue].append(entry)
            if asks:
                self.receipts.append((queue, producer.generation, entry, True))

    @rule(queue=st.integers(0, 1), count=st.integers(1, 3))
    def refuse(self, queue: int, count: int) -> None:
        """Some messages are dropped; only those that ask for a receipt are reported; the following ones are stored (H1)."""
        producer = self.pulsar[queue]
        if producer is None:
            return
        dropped = producer.pending[:count]
        if not any(asks for _, asks in dropped):
            return  # a silent drop in mid-batch is what pulsar_client's limits rule out: then all up to the mark fail
        del producer.pending[:count]
        for entry, asks in dropped:
            if asks:
                self.receipts.append((queue, producer.generation, entry, False))

    @precondition(lambda self: self.receipts)
    @rule(refused=st.booleans())
    def hear(self, refused: bool) -> None:
        queue, generation, entry, ok = self.receipts.pop(0)
        if ok:
            self.queues[queue].receipt(generation, entry)
        else:
            verdict = self.queues[queue].failed(generation, refused=refused)
            if verdict is Verdict.REFUSED:
                discarded = self.queues[queue].discard()
                discarded.stored = True  # its dead letter is
                self.truly_stored.add(id(discarded))
                self.arrived_in[queue].remove(discarded)

    @precondition(lambda self: self.receipts)
    @rule()
    def hear_twice(self) -> None:
        queue, generation, entry, ok = self.receipts[0]
        if ok:
            self.queues[queue].receipt(generation, entry)

    @rule()
    def take(self) -> None:
        before = len(self.acked)
        mids = self.acks.take()
        waiting = [e for e in self.arrivals if e.mid and not any(e is a for a in self.acked)]
        self.acked.extend(waiting[: len(mids)])
        assert [e.mid for e in self.acked[before:]] == mids

    @invariant()
    def nothing_is_acknowledged_that_is_not_stored(self) -> None:
        assert all(id(e) in self.truly_stored for e in getattr(self, "acked", []))

    @invariant()
    def each_queue_is_stored_in_order(self) -> None:
        """First copies are in the order of arrival: a repeat may come again, nothing overtakes what it follows."""
        for queue, entries in enumerate(getattr(self, "log", [])):
            first: list[int] = []
            seen: set[int] = set()
            for entry in entries:
                if id(entry) not in seen:
                    seen.add(id(entry))
                    first.append(id(entry))
            order = [id(e) for e in self.arrived_in[queue]]
            known = [i for i in first if i in set(order)]
            assert known == order[: len(known)] or self._gap_is_unconfirmed(queue, known, order)

    def _gap_is_unconfirmed(self, queue: int, known: list[int], order: list[int]) -> bool:
        """A later one may be stored before a refused one, but then its receipt counts for nothing."""
        missing = [i for i in order[: order.index(known[-1])] if i not in known]
        stored_flags = {id(e): e.stored for e in self.arrived_in[queue]}
        behind = order[order.index(missing[0]) :]
        return not any(stored_flags[i] for i in behind)


Ingest.TestCase.settings = settings(deadline=None, max_examples=200, stateful_step_count=60)
TestIngest = Ingest.TestCase


def queue_with(count: int) -> tuple[ProducerQueue, list[Entry]]:
    queue = ProducerQueue()
    queue.reopened()
    entries = [Entry(1, n + 1) for n in range(count)]
    for entry in entries:
        queue.put(entry)
    return queue, entries


def test_acks_wait_for_the_head() -> None:
    acks = AckQueue()
    acks.connected(1)
    entries = [Entry(1, n) for n in (7, 8, 0, 9)]
    for entry in entries:
        acks.arrived(entry)
    entries[1].stored = entries[2].stored = True
    assert acks.take() == []
    entries[0].stored = True
    assert acks.take() == [7, 8]
    assert acks.oldest is entries[3]


def test_h2_a_receipt_after_a_reconnect_acknowledges_nothing_of_the_new_connection() -> None:
    acks = AckQueue()
    acks.connected(1)
    old = Entry(1, 5)
    acks.arrived(old)
    acks.connected(2)
    new = Entry(2, 5)  # the same packet identifier means another message now
    acks.arrived(new)
    old.stored = True
    assert acks.take() == []
    new.stored = True
    assert acks.take() == [5]


def test_h1_a_good_receipt_of_a_retired_producer_counts_for_nothing() -> None:
    queue, entries = queue_with(3)
    assert queue.to_send() == entries
    assert queue.failed(1, refused=False) is Verdict.RETIRED
    assert queue.receipt(1, entries[2]) == []
    assert not any(e.stored for e in entries)
    assert queue.reopened() == 2
    queue.put(Entry(1, 4))
    again = queue.to_send()
    assert again[:3] == entries  # before anything new
    assert queue.failed(1, refused=False) is Verdict.LATE
    assert queue.receipt(2, again[3]) == again


def test_a_refusal_narrows_down_to_the_message_it_means() -> None:
    queue, entries = queue_with(3)
    queue.to_send()
    assert queue.failed(1, refused=True) is Verdict.RETIRED
    queue.reopened()
    assert queue._careful_left > 0
    assert queue.to_send() == [entries[0]]
    assert queue.to_send() == []  # one at a time
    assert queue.receipt(2, entries[0]) == [entries[0]]
    assert queue.to_send() == [entries[1]]
    assert queue.failed(2, refused=True) is Verdict.REFUSED
    assert queue.discard() is entries[1]
    queue.reopened()
    assert queue.to_send() == [entries[2]]
    queue.receipt(3, entries[2])
    assert queue._careful_left == 0


@pytest.mark.parametrize(("size", "under_way"), [(1, 2), (11, 2), (12, 1), (100, 1)])
def test_small_batches_wait_for_a_receipt_the_sooner_the_faster_messages_come(size: int, under_way: int) -> None:
    queue, _ = queue_with(size)
    sent = [queue.to_send()]
    for mid in range(1000, 1000 + 249):
        queue.put(Entry(1, mid))
        if batch := queue.to_send():
            sent.append(batch)
    assert len(sent) == under_way
    queue.put(Entry(1, 2000))
    if under_way == 1:
        assert len(queue.to_send()) == 250, "a good batch never waits"
    else:
        queue.receipt(1, sent[0][-1])
        assert len(queue.to_send()) == 249, "nor any behind a receipt"


def test_an_error_that_passes_does_not_refuse_anything() -> None:
    queue, entries = queue_with(1)
    queue.to_send()
    assert queue.failed(1, refused=False) is Verdict.RETIRED
    assert queue.oldest is entries[0]
    assert len(queue) == 1
