from __future__ import annotations

import pytest

from bridge.errors import TransientError
from streaming.conflicts import is_conflict, retrying

APPEND = "[DELTA_CONCURRENT_APPEND.WITHOUT_HINT] Transaction conflict detected. a concurrent WRITE added data"
DELETE = "[DELTA_CONCURRENT_DELETE_READ.WITHOUT_HINT] Transaction conflict detected, a concurrent OPTIMIZE"
TWICE = "[DELTA_CONCURRENT_TRANSACTION] This error occurs when multiple streaming queries are using the same"


@pytest.mark.parametrize(
    ("text", "again"),
    [
        (APPEND, True),
        (DELETE, True),
        ("[DELTA_METADATA_CHANGED] The metadata", True),
        (TWICE, False),
        ("no", False),
    ],
)
def test_another_writer_is_told_from_a_second_query_and_from_all_else(text: str, again: bool) -> None:
    assert is_conflict(ValueError(text)) is again


def test_a_refused_write_is_tried_until_nobody_comes_in_between() -> None:
    refusals = [APPEND, DELETE]
    told: list[int] = []

    def write() -> str:
        if refusals:
            raise ValueError(refusals.pop())
        return "written"

    assert retrying(write, "silver", longest_wait_s=0.01, refused=told.append) == "written"
    assert told == [1, 2]


def test_who_never_gets_through_is_told_what_to_do_and_other_errors_are_not_tried_again() -> None:
    calls: list[str] = []

    def write(text: str) -> None:
        calls.append(text)
        raise ValueError(text)

    with pytest.raises(TransientError, match="silver: other writers were first"):
        retrying(lambda: write(APPEND), "silver", for_s=0.0)
    with pytest.raises(ValueError, match="multiple streaming"):
        retrying(lambda: write(TWICE), "silver", for_s=9.0)
    assert calls == [APPEND, TWICE]
