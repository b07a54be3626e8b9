"""Offsets round trip, are equal texts when equal, and are refused where they do not belong."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.contract import Position
from bridge.errors import ContractError, DataLossError
from sources.offsets import Offset

names = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=12)
positions = st.dictionaries(names, st.builds(Position, st.integers(0, 2**62), st.integers(0, 2**62)), max_size=6)
offsets = st.builds(Offset, names, positions, st.dictionaries(names, names, max_size=3))


@given(offsets, st.randoms())
@settings(deadline=None)
def test_an_offset_round_trips_and_equal_positions_have_the_same_text(offset: Offset, random: object) -> None:
    text = json.dumps(offset.to_json())
    back = Offset.from_json(json.loads(text))
    assert back == offset
    shuffled = list(offset.positions.items())
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert json.dumps(Offset(offset.cluster, dict(shuffled), offset.incarnations).to_json()) == text


def test_the_shape_of_an_offset_is_the_contract() -> None:
    offset = Offset(
        "c",
        {"persistent://a/b/t-partition-1": Position(7, 3), "persistent://a/b/t-partition-0": Position(5, 0)},
        {"persistent://a/b/t": "x"},
    )
    assert json.dumps(offset.to_json()) == (
        '{"v": 1, "cluster": "c", "t": {"persistent://a/b/t-partition-0": [5, 0], '
        '"persistent://a/b/t-partition-1": [7, 3]}, "i": {"persistent://a/b/t": "x"}}'
    )


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"v": 2},
        {"v": 1},
        {"v": 1, "cluster": "c", "t": {"p": [1]}},
        {"v": 1, "cluster": "c", "t": {"p": [1, -1]}},
        {"v": 1, "cluster": "c", "t": []},
    ],
)
def test_what_is_no_offset_of_this_version_is_refused(body: dict[str, object]) -> None:
    with pytest.raises(ContractError):
        Offset.from_json(body)


def test_a_checkpoint_of_another_cluster_or_of_a_recreated_topic_is_refused_with_the_remedy() -> None:
    offset = Offset("east", {"p": Position(1, 0)}, {"t": "1-100", "unmarked": ""})
    offset.refuse_mismatch("east", {"t": "1-100", "unmarked": "7"})
    with pytest.raises(DataLossError, match=r"'east', this is 'west' — start with a new checkpoint"):
        offset.refuse_mismatch("west", {"t": "1-100"})
    with pytest.raises(DataLossError, match=r"topic t is not the one .* — start with a new checkpoint"):
        offset.refuse_mismatch("east", {"t": "9-200"})
    with pytest.raises(DataLossError, match="re-created"):
        offset.refuse_mismatch("east", {"t": ""})
