"""Which entries are acknowledged, as Pulsar's admin writes it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.inspect.devices.acknowledged import Acknowledged


def test_ranges_are_open_or_closed_as_their_brackets_say() -> None:
    parsed = Acknowledged(
        {
            "markDeletePosition": "3155:1",
            "individuallyDeletedMessages": "[(3155:2..3155:4],(3155:6..3155:7],(3155:8..3155:9]]",
        }
    )
    assert [entry for entry in range(13) if parsed.covers(3155, entry)] == [0, 1, 3, 4, 7, 9]
    assert parsed.covers(3100, 99)
    assert not parsed.covers(3156, 0)


@pytest.mark.parametrize("holes", ["", "[]", None])
def test_without_ranges_it_is_all_up_to_the_position(holes: str | None) -> None:
    parsed = Acknowledged({"markDeletePosition": "7:-1", "individuallyDeletedMessages": holes})
    assert parsed.covers(6, 5)
    assert not parsed.covers(7, 0)


@given(st.sets(st.integers(0, 60)), st.integers(-1, 60))
def test_every_set_of_entries_is_read_back(acknowledged: set[int], until: int) -> None:
    acknowledged |= set(range(until + 1))
    beyond = sorted(entry for entry in acknowledged if entry > until)
    ranges = ",".join(f"(5:{entry - 1}..5:{entry}]" for entry in beyond)
    parsed = Acknowledged({"markDeletePosition": f"5:{until}", "individuallyDeletedMessages": f"[{ranges}]"})
    assert {entry for entry in range(62) if parsed.covers(5, entry)} == acknowledged
