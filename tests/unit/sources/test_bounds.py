"""Offsets and times as users and other connectors write them, and what they mean here."""

from __future__ import annotations

import json

import pulsar
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.contract import Position
from sources.bounds import At, offsets_of, times_of

TOPIC = "persistent://a/b/t"


@given(st.integers(0, 2**40), st.integers(0, 2**30), st.integers(-1, 9), st.integers(-1, 900), st.booleans())
def test_the_bytes_of_a_message_id_name_its_entry_and_an_end_includes_it(
    ledger: int, entry: int, partition: int, index: int, signed: bool
) -> None:
    """StreamNative's connector writes Java's signed bytes, and an end that names the last message read."""
    data = pulsar.MessageId(partition, ledger, entry, index).serialize()
    numbers = [n - 256 if signed and n > 127 else n for n in data]
    text = json.dumps({TOPIC: numbers})
    assert offsets_of(text, ending=False).bounds == {TOPIC: Position(ledger, entry)}
    assert offsets_of(text, ending=True).bounds == {TOPIC: Position(ledger, entry + 1)}


def test_earliest_and_latest_have_many_names() -> None:
    earliest = [8, *[-1] * 9, 1, 16, *[-1] * 9, 1]
    latest = [8, *[-1] * 8, 127, 16, *[-1] * 8, 127]
    for value, word in (
        (earliest, "earliest"),
        (latest, "latest"),
        (-2, "earliest"),
        (-1, "latest"),
        ("Latest", "latest"),
    ):
        assert offsets_of(json.dumps({TOPIC: value}), ending=False).bounds == {TOPIC: word}, value
    assert offsets_of(" EARLIEST ", ending=True).default == "earliest"


def test_partitions_are_named_in_full_or_by_number_below_their_topic() -> None:
    text = json.dumps({TOPIC: {"0": [7, 1], "12": "latest"}, "u-partition-3": [1, 0]})
    assert offsets_of(text, ending=False).bounds == {
        f"{TOPIC}-partition-0": Position(7, 1), f"{TOPIC}-partition-12": "latest",
        "persistent://public/default/u-partition-3": Position(1, 0),
    }  # fmt: skip


def test_what_json_does_not_name_is_read_whole() -> None:
    text = json.dumps({TOPIC: [7, 1]})
    assert offsets_of(text, ending=False).default == "earliest"
    assert offsets_of(text, ending=True).default == "latest"
    assert times_of(json.dumps({TOPIC: 5}), ending=False).default == "earliest"
    assert times_of(json.dumps({TOPIC: 5}), ending=True).default == "latest"


def test_times_are_one_for_all_or_by_topic_and_partition() -> None:
    assert times_of("5", ending=False).time_ms == 5
    text = json.dumps({TOPIC: {"1": 7}, "u": -1, "v": -2})
    assert times_of(text, ending=False).bounds == {
        f"{TOPIC}-partition-1": At(7), "persistent://public/default/u": "earliest",
        "persistent://public/default/v": "latest",
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    ["soon", "[1]", '{"t": [1]}', '{"t": [8, 1, 17]}', '{"t": true}', '{"t": null}', '{"a/b": [1, 2]}'],
)
def test_anything_else_is_no_offset(text: str) -> None:
    with pytest.raises(ValueError):
        offsets_of(text, ending=False)


@pytest.mark.parametrize("text", ["soon", "-5", "1.5", '{"t": [1, 2]}', '{"t": -7}', '{"t": true}'])
def test_anything_else_is_no_time(text: str) -> None:
    with pytest.raises(ValueError):
        times_of(text, ending=False)
