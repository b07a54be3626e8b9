"""The end of a ledger is found by a request for the first message from a position on."""

from __future__ import annotations

import math

from hypothesis import example, given, settings
from hypothesis import strategies as st

from bridge.contract import Position
from sources.binary import LedgerEnd, ledger_end


@st.composite
def ledgers(draw: st.DrawFn) -> list[tuple[int, int]]:
    """The first and last entries of a ledger's messages, some in chunks that lie between each other's."""
    found: list[tuple[int, int]] = []
    at = 0
    for _ in range(draw(st.integers(0, 60))):
        group = draw(st.permutations(draw(st.sampled_from([[0], [0, 0], [0, 0, 1, 1], [0, 0, 1, 1, 1]]))))
        for message in sorted(set(group)):
            places = [at + n for n, of in enumerate(group) if of == message]
            found.append((places[0], places[-1]))
        at += len(group)
    return found


@given(ledgers(), st.integers(0, 300), st.booleans())
@example([(0, 0), (1, 2)], 2, False)
@example([(0, 2), (1, 3)], 0, True)
@settings(deadline=None)
def test_the_end_of_a_ledger_is_found_whatever_its_messages_span(
    messages: list[tuple[int, int]], known: int, followed: bool
) -> None:
    """A message in chunks comes only to who begins at its first one or before, in the order of the last ones."""
    total = max((last for _, last in messages), default=-1) + 1
    known = min(known, total)
    asked = 0

    def first_from(entry: int) -> Position | None:
        nonlocal asked
        asked += 1
        lasts = [last for first, last in messages if first >= entry]
        if lasts:
            return Position(7, min(lasts))
        return Position(9, 3) if followed else None

    def last_from(entry: int) -> int:
        return max((last for first, last in messages if first >= entry), default=entry - 1)

    found = ledger_end(7, known, first_from, last_from)
    assert found == LedgerEnd(total, 9 if followed else None)
    assert asked <= 2 * math.log2(total + 2) + 4
