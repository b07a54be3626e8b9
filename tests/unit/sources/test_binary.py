"""The end of a ledger is found by asking for the first message from a place on."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.contract import Position
from sources.binary import LedgerEnd, ledger_end


@given(
    st.lists(st.integers(1, 4), min_size=0, max_size=200),
    st.integers(0, 300),
    st.booleans(),
)
@settings(deadline=None)
def test_the_end_of_a_ledger_is_found_whatever_its_messages_span(
    spans: list[int], known: int, followed: bool
) -> None:
    """A message in chunks spans several entries; it comes only to who begins at its first one or before."""
    firsts, total = [], 0
    for span in spans:
        firsts.append((total, total + span - 1))
        total += span
    known = min(known, total)
    asked = 0

    def first_from(entry: int) -> Position | None:
        nonlocal asked
        asked += 1
        for first, last in firsts:
            if first >= entry:
                return Position(7, last)
        return Position(9, 3) if followed else None

    assert ledger_end(7, known, first_from) == LedgerEnd(total, 9 if followed else None)
    assert asked <= 2 * math.log2(total + 2) + 4
