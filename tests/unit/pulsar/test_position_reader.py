"""A reader is re-created if that is cheaper than to read on, by the recent cost of both."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.contract.commands import CommandPosition
from bridge.pulsar.client import MessageId, PulsarClient, ReceiveTimeout
from bridge.pulsar.position_reader import Pace, PositionReader
from bridge.pulsar.topic_end import Ledgers
from bridge.settings import PulsarSettings
from tests.support.stored_message import StoredMessage

POSITIONS = st.builds(CommandPosition, st.integers(1, 3), st.integers(0, 1000), st.integers(-1, 5))


def at(ledger: int, entry: int) -> CommandPosition:
    return CommandPosition(ledger, entry, -1)


class Log:
    """A partition of ledgers with so many entries each, on a clock that only it moves."""

    def __init__(self, *entries: int, opening: float, entry: float) -> None:
        self._places = [(ledger, n) for ledger, count in enumerate(entries, start=1) for n in range(count)]
        self.opening = opening
        self.entry = entry
        self.now = 0.0
        self.opened = 0
        self.settings = PulsarSettings()

    def ledgers(self, _settings: object, _topic: str) -> Ledgers:
        entries = Counter(ledger for ledger, _ in self._places)
        return Ledgers({"ledgers": [{"ledgerId": one, "entries": entries[one]} for one in entries]})

    def monotonic(self) -> float:
        return self.now

    def reader(self, _topic: str, start: MessageId, **_more: object) -> ReaderOfLog:
        self.now += self.opening
        self.opened += 1
        where = (start.ledger_id(), start.entry_id())
        return ReaderOfLog(self, [place for place in self._places if place >= where])


class ReaderOfLog:
    """Gives what it stands before, a message for each entry."""

    def __init__(self, log: Log, places: list[tuple[int, int]]) -> None:
        self._log = log
        self._places = places

    def read_next(self, _wait_ms: int) -> Any:
        if not self._places:
            raise ReceiveTimeout("nothing came")
        self._log.now += self._log.entry
        ledger, entry = self._places.pop(0)
        return StoredMessage(entry, "d", b"x", ledger=ledger)

    def has_message_available(self) -> bool:
        return bool(self._places)

    def close(self) -> None:
        pass


def reading(log: Log, monkeypatch: pytest.MonkeyPatch) -> PositionReader:
    monkeypatch.setattr("bridge.pulsar.position_reader.time", log)
    monkeypatch.setattr("bridge.pulsar.topic_end.ledgers_of", log.ledgers)
    return PositionReader(cast(PulsarClient, log), "commands", 0)


def read(reader: PositionReader, *positions: CommandPosition) -> None:
    for position in positions:
        found = reader.read(position)
        assert found is not None
        assert found.position == position


@pytest.mark.parametrize(("opening", "opened"), [(0.012, 20), (0.5, 0)])
def test_entries_in_between_are_read_if_a_new_reader_costs_more(
    opening: float, opened: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(5000, opening=opening, entry=0.0005)
    reader = reading(log, monkeypatch)
    read(reader, *(at(1, entry) for entry in range(0, 400, 20)))  # what each costs is learnt
    log.opened = 0
    read(reader, *(at(1, entry) for entry in range(1000, 3000, 100)))
    assert log.opened == opened


def test_a_later_ledger_is_tried_for_as_long_as_a_new_reader_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(10, 10, 10_000, opening=0.05, entry=0.001)
    reader = reading(log, monkeypatch)
    read(reader, at(1, 0), at(2, 3), at(3, 5))
    assert log.opened == 1, "two ledgers farther, twenty entries away"
    began = log.now
    log._places += [(4, 0)]
    read(reader, at(4, 0))
    assert log.opened == 2
    assert log.now - began < 3 * log.opening, "not through ten thousand entries"


def test_what_is_not_there_any_more_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(10, 10, opening=0.05, entry=0.001)
    log._places = [place for place in log._places if place > (1, 4)]
    reader = reading(log, monkeypatch)
    assert reader.read(at(1, 2)) is None
    read(reader, at(1, 6), at(2, 9))
    assert reader.read(at(2, 10)) is None, "there is no message after the last one"
    assert reader.read(at(3, 0)) is None


@given(st.lists(POSITIONS, unique=True, min_size=1, max_size=30), st.floats(0.0001, 1), st.floats(0.0001, 1))
def test_whatever_was_measured_each_message_comes(wanted: list[CommandPosition], opening: float, entry: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        reader = reading(Log(1001, 1001, 1001, opening=opening, entry=entry), patch)
        read(reader, *(position._replace(batch_index=-1) for position in wanted))


@given(POSITIONS, POSITIONS, st.floats(0.0001, 10), st.floats(0.0001, 10), st.integers(1, 100))
def test_a_reader_never_goes_back_and_passes_no_more_than_it_may(
    here: CommandPosition, wanted: CommandPosition, opening: float, entry: float, near: int
) -> None:
    pace = Pace()
    pace.opened(opening)
    pace.read(1, entry)
    if pace.reads_on(here, wanted, near):
        assert wanted > here
        assert wanted.ledger > here.ledger or wanted.entry - here.entry <= near


def test_a_time_in_which_nothing_came_teaches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(100, opening=0.05, entry=0.001)
    reader = reading(log, monkeypatch)
    read(reader, at(1, 0))
    waits = [60.0]

    def slowly(opened: ReaderOfLog, wait_ms: int) -> Any:
        if waits:
            log.now += waits.pop()
            raise ReceiveTimeout("nothing came")
        return once(opened, wait_ms)

    once = ReaderOfLog.read_next
    monkeypatch.setattr(ReaderOfLog, "read_next", slowly)
    monkeypatch.setattr("bridge.pulsar.position_reader._PATIENCE_S", 100.0)
    read(reader, at(1, 1), at(1, 2), at(1, 40))
    assert log.opened == 1


@pytest.mark.parametrize("shown", [True, False])
def test_h25_existing_entries_are_not_reported_lost_by_a_restarted_broker(
    shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(10, opening=0.05, entry=0.001)
    reader = reading(log, monkeypatch)
    silent = [None] * 3
    once = ReaderOfLog.read_next

    def late(opened: ReaderOfLog, wait_ms: int) -> Any:
        if silent:
            silent.pop()
            raise ReceiveTimeout("nothing came")
        return once(opened, wait_ms)

    monkeypatch.setattr(ReaderOfLog, "read_next", late)
    monkeypatch.setattr(ReaderOfLog, "has_message_available", lambda _reader: False)
    if not shown:  # then its word is all that there is
        monkeypatch.setattr("bridge.pulsar.topic_end.ledgers_of", lambda _settings, _topic: None)
    found = reader.read(at(1, 4))
    assert (found is not None) == shown
