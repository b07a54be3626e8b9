from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pulsebridge.audit.live.findings import Kind
from pulsebridge.audit.live.sequence import MOST_GAPS, NO_NUMBER, RECENT, Sequences

Taken = tuple[str, str, int, int]
"""Route, device, number and content."""


def take(of: Sequences, messages: Sequence[Taken], size: int) -> None:
    """Take messages, ``size`` at once."""
    for at in range(0, len(messages), size):
        some = messages[at : at + size]
        names = sorted({one[:2] for one in some})
        columns = (
            [names.index(one[:2]) for one in some],
            [one[2] for one in some],
            range(at, at + len(some)),
            [one[3] for one in some],
        )
        of.take_all(names, *(np.array(column, np.int64) for column in columns))


def found(numbers: Iterable[int | tuple[int, int]], explained: Iterable[int] = ()) -> tuple[list[tuple[str, str]], int]:
    messages = [("r", "d", *(one if isinstance(one, tuple) else (one, one))) for one in numbers]
    results = []
    for size in (1, 3, len(messages)):
        of = Sequences({("r", "d", n) for n in explained})
        take(of, messages, size)
        results.append((sorted((f.kind, f.message.removeprefix("number ")) for f in of.end()), of.copies))
    assert results[0] == results[1] == results[2]
    return results[0]


def test_successive_numbers_from_any_first_one_are_fine() -> None:
    assert found(range(5, 50)) == ([], 0)


def test_a_gap_is_missing_unless_a_dead_letter_has_its_number() -> None:
    assert found([1, 2, 4, 5]) == ([(Kind.MISSING, "3")], 0)
    assert found([1, 2, 4, 5], [3]) == ([], 0)


def test_a_late_number_is_reordered() -> None:
    assert found([1, 3, 2, 4]) == ([(Kind.REORDERED, "2")], 0)


def test_a_copy_is_counted_and_the_same_number_with_another_payload_is_found() -> None:
    assert found([1, 2, 3, 2, 3, 4]) == ([], 2)
    assert found([1, 2, 3, (2, 99), 4]) == ([(Kind.REPEATED, "2")], 0)


def test_the_first_number_counts_as_seen() -> None:
    assert found([7, 8, (7, 99), 7]) == ([(Kind.REPEATED, "7")], 1)


def test_a_restart_of_the_device_begins_a_new_count() -> None:
    assert found([7, 8, 1, 2, 3]) == ([], 0)
    assert found([7, 9, 0, 1, 3]) == ([(Kind.MISSING, "2"), (Kind.MISSING, "8")], 0)
    assert found([(1, 5), (2, 6), (1, 7), (2, 8)]) == ([], 0)


def test_a_large_jump_is_one_finding_beyond_the_bound() -> None:
    kinds, _ = found([1, 10**12])
    assert len(kinds) == MOST_GAPS + 1


def test_devices_and_routes_are_counted_separately() -> None:
    of = Sequences()
    messages = [("r", "d", 1), ("r", "e", 5), ("s", "d", 9), ("r", "d", 2), ("r", "e", 6), ("s", "d", 10)]
    take(of, [(*one, 0) for one in messages], 4)
    assert list(of.end()) == []


@given(st.sets(st.integers(3, 100)), st.lists(st.integers(0, 98), max_size=10))
def test_any_lost_numbers_are_found_and_redelivered_ones_are_not(lost: set[int], copies: list[int]) -> None:
    sent = [n for n in range(2, 102) if n not in lost]
    with_copies = list(sent)
    for at in copies:
        with_copies.insert(at + 1, with_copies[min(at, len(with_copies) - 1)])
    kinds, seen = found([*with_copies[: with_copies.index(101)], 101])
    assert kinds == sorted((Kind.MISSING, str(n)) for n in lost)
    assert seen <= len(copies)


def test_a_message_without_a_number_is_not_counted() -> None:
    assert found([3, NO_NUMBER, 4, NO_NUMBER, 6]) == ([(Kind.MISSING, "5")], 0)


@given(
    st.lists(st.tuples(st.sampled_from("de"), st.integers(0, 2 * RECENT), st.integers(0, 1)), max_size=80),
    st.integers(1, 80),
)
def test_a_division_into_parts_changes_nothing(messages: list[tuple[str, int, int]], size: int) -> None:
    results = []
    for parts in (1, size):
        of = Sequences()
        take(of, [("r", *one) for one in messages], parts)
        results.append((sorted(of.end()), of.copies))
    assert results[0] == results[1]
