"""The last receipt of a command, whatever the batches in which commands and receipts come."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from sinks.receipts import latest


class State:
    """What Spark keeps of one command between its micro-batches."""

    def __init__(self) -> None:
        self.kept: tuple[str] | None = None
        self.hasTimedOut = False
        self.times_out_at = 0

    @property
    def exists(self) -> bool:
        return self.kept is not None

    @property
    def get(self) -> tuple[str]:
        assert self.kept is not None
        return self.kept

    def update(self, value: tuple[str]) -> None:
        self.kept = value

    def remove(self) -> None:
        self.kept = None

    def getCurrentWatermarkMs(self) -> int:
        return 5_000

    def setTimeoutTimestamp(self, at: int) -> None:
        self.times_out_at = at


def command(emitted_us: int = 7_000_000) -> dict[str, Any]:
    return {"emitted_us": emitted_us, "command": '{"device":"d"}', "receipt": None, "order": None}


def receipt(state: str, entry: int, emitted_us: int = 7_000_000) -> dict[str, Any]:
    place = {"settles": state != "duplicate", "ledger_id": 1, "entry_id": entry, "batch_index": 0}
    return {
        "emitted_us": emitted_us, "command": None, "receipt": json.dumps({"state": state}), "order": json.dumps(place),
    }  # fmt: skip


def batch(state: State, rows: list[dict[str, Any]], *, final: bool) -> list[tuple[Any, ...]]:
    frames = [pd.DataFrame([row]) for row in rows]
    found = list(latest(final=final)(("c", "d"), frames, state))
    return [tuple(row) for frame in found for row in frame.itertuples(index=False)]


def ended(state: State) -> list[tuple[Any, ...]]:
    state.hasTimedOut = True
    return batch(state, [], final=True)


ALL = [
    command(),
    command(6_000_000),
    *(receipt(s, n) for n, s in enumerate(("expired", "delivered", "duplicate"))),
]


@given(st.permutations(ALL), st.lists(st.booleans(), min_size=len(ALL), max_size=len(ALL)))
def test_one_row_with_the_last_receipt_however_they_come(rows: list[dict[str, Any]], cuts: list[bool]) -> None:
    state = State()
    part: list[dict[str, Any]] = []
    for row, cut in zip(rows, cuts, strict=True):
        part.append(row)
        if cut:
            assert batch(state, part, final=True) == []
            part = []
    batch(state, part, final=True)
    assert state.times_out_at == 7_001
    (found,) = ended(state)
    assert found == ("c", 7_000_000, '{"device":"d"}', '{"state": "delivered"}', 2, 3)
    assert not state.exists


def test_update_gives_each_change_and_nothing_at_the_end() -> None:
    state = State()
    assert batch(state, [receipt("duplicate", 9)], final=False) == [], "its command is not there yet"
    (first,) = batch(state, [command(1)], final=False)
    assert first[3] == '{"state": "duplicate"}', "better than nothing"
    assert state.times_out_at == 7_001
    (second,) = batch(state, [receipt("delivered", 1)], final=False)
    assert second[3] == '{"state": "delivered"}'
    state.hasTimedOut = True
    assert batch(state, [], final=False) == []


def test_a_receipt_without_its_command_makes_no_row() -> None:
    state = State()
    batch(state, [receipt("delivered", 1)], final=True)
    assert ended(state) == []


def test_a_row_has_the_time_of_its_command_and_waits_for_what_was_sent_again() -> None:
    state = State()
    batch(state, [command(), receipt("expired", 1), receipt("delivered", 2, 99_000_000)], final=True)
    assert state.times_out_at == 99_001
    (found,) = ended(state)
    assert found[1] == 7_000_000


def test_a_command_without_a_time_has_none() -> None:
    state = State()
    batch(state, [command(0), receipt("delivered", 1, 0)], final=True)
    assert state.times_out_at == 5_001
    (found,) = ended(state)
    assert found[1] is pd.NA
