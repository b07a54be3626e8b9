"""The cache of group payloads, and its reader."""

from __future__ import annotations

import queue
import time
from collections import Counter
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from bridge.contract.commands import CommandPosition
from bridge.pulsar.client import Message, MessageId, PulsarClient, ReceiveTimeout
from bridge.pulsar.position_reader import PositionReader
from bridge.push.groups.payloads import PayloadCache, Payloads
from bridge.push.metrics import PushMetrics
from bridge.settings import Settings
from tests.support.stored_message import StoredMessage
from tests.support.waiting import patient


def place(number: int) -> CommandPosition:
    return CommandPosition(3, number, -1)


@given(
    st.lists(st.tuples(st.sampled_from(["ask", "fetched"]), st.integers(0, 5)), max_size=60),
    st.integers(0, 40),
)
def test_a_payload_is_read_once_for_all_who_ask_and_the_cache_keeps_its_bounds(
    played: list[tuple[str, int]], limit: int
) -> None:
    reading: list[CommandPosition] = []
    answers: list[tuple[CommandPosition, bytes | None]] = []
    counted: Counter[str] = Counter()
    cache = PayloadCache(limit, reading.append, lambda: counted.update(["hit"]), lambda: counted.update(["missed"]))
    asked = answered = reads = 0
    for event, number in played:
        if event == "ask":
            asked += 1
            before = len(reading)
            found = cache.ask(place(number), lambda position, payload: answers.append((position, payload)))
            reads += len(reading) - before
            assert reading.count(place(number)) <= 1, "concurrent misses wait for one read"
            if found is not None:
                answered += 1
                assert found == bytes([number]) * (number * 4)
        elif reading:
            wanted = reading.pop(number % len(reading))
            cache.fetched(wanted, bytes([wanted.entry]) * (wanted.entry * 4) if wanted.entry != 1 else None)
        assert 0 <= cache.size <= limit
    while reading:
        cache.fetched(reading.pop(), None)
    assert answered + len(answers) == asked, "every request is answered once"
    assert (counted["missed"], counted["hit"]) == (reads, asked - reads)


def test_what_was_used_longest_ago_goes_first() -> None:
    read: list[CommandPosition] = []

    def fetch(position: CommandPosition) -> None:
        read.append(position)
        cache.fetched(position, b"x")

    cache = PayloadCache(2, fetch)
    for number in (1, 2, 1, 3, 1, 2):
        cache.ask(place(number), lambda _position, _payload: None)
    assert read == [place(n) for n in (1, 2, 3, 2)], "2 made room for 3"
    assert cache.size == 2


class ReaderOfPulsar:
    """Stands at its start; ``script`` says for each read and each question what Pulsar does then."""

    def __init__(self, world: PulsarThatStalls, start: MessageId) -> None:
        self.world = world
        self.at = start.entry_id()

    def read_next(self, _wait_ms: int) -> Message:
        if not self.world.gives(self):
            raise ReceiveTimeout("nothing came")
        self.at += 1
        entry = self.at - 1
        return cast(Message, StoredMessage(entry, "g", b"payload %d" % entry))

    def has_message_available(self) -> bool:
        if not self.world.answers():
            raise ReceiveTimeout("the topic is not served")
        return True

    def close(self) -> None:
        self.world.closed += 1
        raise ReceiveTimeout("the connection is gone")


class PulsarThatStalls:
    """Readers of a topic that gives nothing for a while; ``answers_then``: yet it says that there is something."""

    def __init__(self, stalls_s: float, *, answers_then: bool, only_first: bool = False) -> None:
        self.opened = self.closed = 0
        self._first: ReaderOfPulsar | None = None
        self._stalls_s = stalls_s
        self._until = 0.0
        self._answers_then = answers_then
        self._only_first = only_first

    def stall(self) -> None:
        self._until = time.monotonic() + self._stalls_s

    @property
    def _stalled(self) -> bool:
        return time.monotonic() < self._until

    def reader(self, _topic: str, start: MessageId, **_more: object) -> ReaderOfPulsar:
        self.opened += 1
        made = ReaderOfPulsar(self, start)
        self._first = self._first or made
        return made

    def gives(self, reader: ReaderOfPulsar) -> bool:
        return not self._stalled or (self._only_first and reader is not self._first)

    def answers(self) -> bool:
        return self._answers_then or not self._stalled


def read_payloads(world: PulsarThatStalls, monkeypatch: pytest.MonkeyPatch) -> list[bytes | None]:
    """Read one payload, then one behind it while Pulsar stalls; in a tenth of a second patience is at its end."""
    monkeypatch.setattr("bridge.pulsar.position_reader._PATIENCE_S", 0.1)
    payloads = Payloads(Settings(), PushMetrics(CollectorRegistry()), list[Exception]().append)
    reader = PositionReader(cast(PulsarClient, world), "group-commands", 0, near=4)
    first = payloads._read(reader, place(1))
    world.stall()
    return [first, payloads._read(reader, place(2))]


def test_a_payload_waits_for_a_pulsar_that_does_not_serve_its_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    world = PulsarThatStalls(0.5, answers_then=False)
    assert read_payloads(world, monkeypatch) == [b"payload 1", b"payload 2"]


def test_a_reader_that_gets_nothing_any_more_makes_no_payload_count_as_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = PulsarThatStalls(60, answers_then=True, only_first=True)
    assert read_payloads(world, monkeypatch) == [b"payload 1", b"payload 2"]
    assert (world.opened, world.closed) == (2, 1)


class PulsarWithoutABookie(PulsarThatStalls):
    """Gives nothing of the entries up to 2 while it stalls, and answers."""

    def __init__(self) -> None:
        super().__init__(3600, answers_then=True)
        self.stall()

    def gives(self, reader: ReaderOfPulsar) -> bool:
        return not self._stalled or reader.at > 2

    def back(self) -> None:
        self._until = 0.0

    def __enter__(self) -> PulsarWithoutABookie:
        return self

    def __exit__(self, *_what: object) -> None:
        pass


def test_what_pulsar_has_and_gives_to_no_reader_waits_behind_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = PulsarWithoutABookie()
    monkeypatch.setattr("bridge.pulsar.position_reader._PATIENCE_S", 0.1)
    monkeypatch.setattr("bridge.push.groups.payloads.PulsarClient", lambda _settings: world)
    answers: queue.SimpleQueue[tuple[int, bytes | None]] = queue.SimpleQueue()
    failures: list[Exception] = []
    payloads = Payloads(Settings(), PushMetrics(CollectorRegistry()), failures.append)
    for number in (1, 9, 2):
        assert payloads.ask(place(number), lambda at, payload: answers.put((at.entry, payload))) is None
    try:
        assert answers.get(timeout=patient(20)) == (9, b"payload 9")
        world.back()
        assert sorted(answers.get(timeout=patient(20)) for _ in range(2)) == [
            (1, b"payload 1"),
            (2, b"payload 2"),
        ]
    finally:
        payloads.close()
    assert answers.empty()
    assert not failures
