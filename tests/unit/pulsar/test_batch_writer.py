"""Rows over a Pulsar that fails at times: each is stored, in order, and confirmed only after that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import DeniedError, RefusedError, TransientError
from bridge.pulsar.batch_writer import BatchAnswered, BatchWriter, ProducerOpened
from bridge.pulsar.client import PulsarClient
from bridge.pulsar.wire.commands import WireError
from tests.support.waiting import poll_for


class Producer:
    """Takes batches; the test decides what the broker says of each."""

    def __init__(self) -> None:
        self.batches: list[tuple[list[Any], Any]] = []

    def send(self, batch: Sequence[Any], receipt: Any) -> None:
        self.batches.append((list(batch), receipt))

    def close(self) -> None:
        self.batches.clear()

    def successor(self) -> None:
        return None


class World:
    """A writer, and the partition that it writes to."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []
        self.confirmed: list[object] = []
        self.refuses: Exception | None = None
        self.producer = Producer()
        self.inbox: list[object] = []
        self.failures: list[Exception] = []
        self.log = BatchWriter(cast(PulsarClient, self), self.inbox.append, self.failures.append)
        self.now = 0.0

    def batch_producer(self, _partition: str, _identity: object) -> Producer:
        if self.refuses is not None:
            raise self.refuses
        self.producer = Producer()
        return self.producer

    def turn(self) -> None:
        self.now += 20.0  # beyond every wait before another try
        self.log.flush(self.now)
        if any(p.opening for p in self.log._partitions.values()):
            poll_for(lambda: any(isinstance(e, ProducerOpened) for e in self.inbox), 10, "an answer", every=0)
        while self.inbox:
            event = self.inbox.pop(0)
            if isinstance(event, ProducerOpened):
                self.log.opened(event, self.now)
            elif isinstance(event, BatchAnswered):
                for token in self.log.written(event):
                    assert token in self.stored, "a row was confirmed before it was stored"
                    self.confirmed.append(token)

    def answer(self, *, good: bool, stores: bool) -> None:
        """The broker stores a batch or not, and says so, or the connection ends before it does."""
        if not self.producer.batches:
            return
        batch, receipt = self.producer.batches.pop(0)
        if good or stores:
            self.stored += [row.payload for row in batch]
        others, self.producer.batches = ([], self.producer.batches) if good else (self.producer.batches, [])
        for one in [receipt, *(other for _, other in others)]:
            one(None if good else WireError("Disconnected"))


@given(st.lists(st.sampled_from(["write", "turn", "store", "lose", "store and lose", "away", "back"]), max_size=60))
def test_every_row_is_stored_in_order_and_confirmed_once(steps: list[str]) -> None:
    world, written = World(), []
    for step in steps:
        if step == "write":
            written.append(b"%d" % len(written))
            world.log.write("receipts-0", "d", written[-1], written[-1])
        elif step == "turn":
            world.turn()
        elif step in ("away", "back"):
            world.refuses = TransientError("away") if step == "away" else None
        else:
            world.answer(good=step == "store", stores=step != "lose")
    world.refuses = None
    for _ in range(len(written) + 4):
        world.turn()
        world.answer(good=True, stores=True)
    world.turn()
    assert world.confirmed == written
    assert list(dict.fromkeys(world.stored)) == written, "a row overtook an earlier one"


def test_a_topic_that_is_not_there_is_waited_for_but_not_for_ever() -> None:
    world = World()
    world.refuses = RefusedError("no such topic")
    world.log.write("receipts-0", "d", b"row", b"row")
    world.turn()
    world.turn()
    world.refuses = None
    for _ in range(3):
        world.turn()
        world.answer(good=True, stores=True)
    world.turn()
    assert world.confirmed == world.stored == [b"row"]
    world.answer(good=False, stores=False)
    world.refuses = RefusedError("no such topic")
    world.log.write("receipts-1", "d", b"other", b"other")
    for _ in range(8):
        world.turn()
    with pytest.raises(RefusedError):
        world.turn()


def test_who_may_not_write_rows_hears_of_it() -> None:
    world = World()
    world.refuses = DeniedError("no", remedy="grant it")
    world.log.write("receipts-0", "d", b"row", b"row")
    with pytest.raises(DeniedError):
        world.turn()


def test_an_unexpected_error_while_opening_is_reported() -> None:
    world = World()
    world.refuses = LookupError("unforeseen")
    world.log.write("p", "d", b"row", b"row")
    world.log.flush(1.0)
    poll_for(lambda: world.failures == [world.refuses], 30, "it was reported", every=0)
