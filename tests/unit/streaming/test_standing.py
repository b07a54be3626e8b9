from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from streaming.standing import Standing, parse


def entry(version: int, index: int, starting: bool, table: str = "t") -> str:
    """Return an entry of Spark's offset log as Delta's source writes it."""
    offset = {
        "sourceVersion": 1, "reservoirId": table, "reservoirVersion": version, "index": index,
        "isStartingVersion": starting,
    }  # fmt: skip
    return "\n".join(["v1", json.dumps({"batchWatermarkMs": 0, "conf": {}}), json.dumps(offset)])


@given(st.integers(0, 10**6), st.integers(-1, 10**4), st.booleans())
def test_a_query_is_done_with_all_before_its_version_and_maybe_with_a_part_of_it(
    version: int, index: int, starting: bool
) -> None:
    found = parse(entry(version, index, starting))
    assert found == Standing("t", version, partly=index >= 0, in_snapshot=starting)
    assert found.has_read(version)
    assert not found.has_read(version + 1)


def test_of_several_tables_the_one_asked_for_counts_and_other_sources_are_none() -> None:
    both = (
        entry(3, -1, False, "a") + "\n" + json.dumps({"reservoirId": "b", "reservoirVersion": 5, "index": -1})
    )
    second = parse(both, "b")
    assert second is not None
    assert second.next_version == 5
    assert parse(both, "c") is None
    assert parse('v1\n{"batchWatermarkMs":0}\n{"v":1,"t":{"persistent://a/b/c":[1,2]}}') is None
    assert parse("v1\n-") is None
