"""How far a hold may move: behind the compaction, whatever was compacted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bridge.contract.commands import CommandPosition
from bridge.pulsar.compaction import (
    LogRecord,
    Move,
    RewriteSchedule,
    ViewRecord,
    compacted_away,
    is_before,
)

keys = st.lists(st.integers(0, 5), max_size=40)


def place(number: int) -> CommandPosition:
    return CommandPosition(1 + number // 7, number % 7)


def held_from(log: list[int], start: int) -> Iterator[LogRecord]:
    identity: Any = None
    return (LogRecord(place(n), identity) for n in range(start, len(log)))


@given(keys, st.data())
def test_h24_a_retention_subscription_moves_to_the_last_compacted_entry_and_never_beyond_the_horizon(
    log: list[int], data: st.DataObject
) -> None:
    horizon = data.draw(st.integers(0, len(log)))
    start = data.draw(st.integers(0, len(log)))
    last = {key: n for n, key in enumerate(log[:horizon])}
    kept = [n for n in range(start, len(log)) if n >= horizon or last[log[n]] == n]
    found = [one.position for one in compacted_away([place(n) for n in kept], held_from(log, start))]
    gone = [n for n in range(start, len(log)) if n not in kept and kept and n < kept[-1]]
    assert found == [place(n) for n in gone]
    assert not found or found[-1] < place(horizon)


def counted(taken: list[CommandPosition], start: int = 0) -> Iterator[LogRecord]:
    for one in held_from([0] * 10, start):
        taken.append(one.position)
        yield one


def test_no_entry_beyond_the_view_is_read_from_the_retention_subscription() -> None:
    """Beyond the present end the next message would have to be waited for."""
    taken: list[CommandPosition] = []
    assert [one.position for one in compacted_away([place(3), place(4)], counted(taken))][-1] == place(2)
    assert taken == [place(n) for n in range(5)]


def test_whether_anything_was_compacted_away_is_known_with_the_first_that_was() -> None:
    taken: list[CommandPosition] = []
    kept = iter([place(0), place(1), place(3), place(4)])
    assert next(compacted_away(kept, counted(taken))).position == place(2)
    assert taken == [place(n) for n in range(3)]
    assert list(kept) == [place(4)]


@given(keys, st.data())
def test_h24_a_retention_subscription_never_passes_the_last_message_of_a_key(
    log: list[int], data: st.DataObject
) -> None:
    horizon = data.draw(st.integers(0, len(log)))
    last = {key: n for n, key in enumerate(log[:horizon])}
    kept = [n for n in range(len(log)) if n >= horizon or last[log[n]] == n]
    if not kept:
        return
    start = data.draw(st.integers(0, kept[0]))
    # By seek it goes to the entry, of which nothing is passed.
    assert is_before(place(start), place(kept[0])) == (start < kept[0])
    assert not is_before(place(kept[0]), place(start)), "it never goes back"


def test_within_one_entry_a_retention_subscription_does_not_move() -> None:
    assert not is_before((1, 5, 0), (1, 5, 7))
    assert is_before((1, 5, 7), (1, 6, 0))
    assert is_before((1, 5, -1), (2, 0, -1))


def test_an_owner_is_asked_for_records_a_day_old_or_passed_and_not_again_for_six_hours() -> None:
    ages, hour = RewriteSchedule(), 3600.0
    now = 1_000 * hour

    def due(partition: str, age: float, at: float, *, passed: bool = False) -> bool:
        oldest = ViewRecord(place(int(at / hour) - 1000 if at >= now else 100), int((at - age) * 1000))
        return ages.ask(partition, Move(False, oldest, passed), at, lambda: True)

    assert not due("p0", 23 * hour, now)
    assert due("p0", 25 * hour, now)
    assert due("p1", 1.0, now, passed=True)
    assert not due("p0", 30 * hour, now + 5 * hour)
    assert not due("p1", 1.0, now + 5 * hour, passed=True)
    assert due("p0", 31 * hour, now + 6 * hour)
    assert due("p0", 31 * hour, now - 48 * hour), "the clock was set back"
    assert not ages.ask("p2", Move(), now, lambda: True)
    old = Move(False, ViewRecord(place(1), 0))
    assert not ages.ask("p3", old, now, lambda: False), "another process owns it"
    assert ages.ask("p3", old, now, lambda: True)


def test_an_owner_is_not_asked_for_ever_for_a_record_that_stays_where_it_is() -> None:
    ages, hour = RewriteSchedule(), 3600.0

    def asked(oldest: CommandPosition) -> int:
        old = Move(False, ViewRecord(oldest, 0))
        return sum(ages.ask("p0", old, (1000 + look) * hour, lambda: True) for look in range(1000))

    assert asked(place(1)) == 3
    assert asked(place(2)) == 3, "another one is"
