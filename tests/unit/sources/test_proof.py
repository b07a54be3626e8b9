"""The proof notes every entry of a range as seen or as missing, never both, never neither."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.contract import Position
from bridge.errors import TransientError
from sources.planning import Segment
from sources.proof import RangeProof, Verdict, classify

segments = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), min_size=1, max_size=4).map(
    lambda parts: [Segment(10 * n, first, first + count) for n, (first, count) in enumerate(parts)]
)


@given(segments, st.data())
@settings(deadline=None)
def test_each_entry_of_the_range_is_seen_or_missing(parts: list[Segment], data: st.DataObject) -> None:
    inside = [Position(s.ledger, e) for s in parts for e in range(s.first, s.stop)]
    around = sorted(
        {Position(s.ledger, e) for s in parts for e in range(s.stop + 3)} | {Position(5, 0), Position(99, 0)}
    )
    arriving = sorted(data.draw(st.sets(st.sampled_from(around))))
    proof = RangeProof(parts)
    seen = []
    for place in arriving:
        if proof.complete:
            break
        if proof.saw(*place):
            seen.append(place)
            assert not proof.saw(*place), "the same entry never counts twice"
    assert seen == [p for p in arriving if p in inside][: len(seen)]
    open_before = list(proof.pending())
    proof.give_up()
    assert proof.complete
    assert sorted(seen + proof.missing) == inside
    assert set(open_before) <= set(proof.missing)


def test_a_range_that_came_whole_misses_nothing() -> None:
    proof = RangeProof([Segment(1, 3, 5), Segment(4, 0, 1)])
    assert [proof.saw(1, 3), proof.saw(1, 4), proof.complete, proof.saw(4, 0)] == [True, True, False, True]
    assert proof.complete
    assert proof.missing == []


@pytest.mark.parametrize(
    ("status", "headers", "verdict"),
    [
        (404, {}, Verdict.LOST),
        (200, {"x-pulsar-num-batch-message": "3"}, Verdict.PRESENT),
        (200, {"x-pulsar-marker-type": "21"}, Verdict.MARKER),
        (200, {"x-pulsar-txn-aborted": "true"}, Verdict.ABORTED),
        (200, {"x-pulsar-txn-uncommitted": "true"}, Verdict.OPEN),
        (200, {"x-pulsar-chunk-id": "1", "x-pulsar-num-chunks-from-msg": "3"}, Verdict.PRESENT),
    ],
)
def test_h15_what_did_not_come_is_classified(status: int, headers: dict[str, str], verdict: Verdict) -> None:
    assert classify(status, headers) is verdict


def test_h15_what_cannot_be_classified_is_an_error_never_seen() -> None:
    for status in (401, 500, 503):
        with pytest.raises(TransientError):
            classify(status, {})
    for verdict in (Verdict.PRESENT, Verdict.OPEN, Verdict.LOST):
        assert not verdict.settled
