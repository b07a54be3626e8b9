"""A checkpoint is read as Spark writes it, and what is no checkpoint of this source is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bridge.contract import Position
from bridge.errors import ConfigError, ContractError
from sources.offsets import Offset
from sources.replanning import time_ms
from sources.spark_internals import offsets_in, read_checkpoint

OFFSET = Offset("c", {"persistent://a/b/t": Position(3, 4)}, {"persistent://a/b/t": "m"})
KAFKA = json.dumps({"topic": {"0": 17}})


def write(folder: Path, log: str, batch: int, *lines: str) -> None:
    path = folder / log / str(batch)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["v1", json.dumps({"batchWatermarkMs": 0}), *lines]))


def ours(entry: int) -> str:
    return json.dumps(OFFSET.moved_to({"persistent://a/b/t": Position(3, entry)}).to_json())


def test_the_last_batch_is_reported_with_its_commit_state(tmp_path: Path) -> None:
    for batch in range(9, 12):
        write(tmp_path, "offsets", batch, KAFKA, ours(batch), "-")
    (tmp_path / "offsets" / ".9.crc").write_bytes(b"\xff")
    write(tmp_path, "commits", 10)
    state = read_checkpoint(str(tmp_path))
    assert (state.committed, state.planned, state.unfinished) == (10, 11, True)
    assert [offset.positions["persistent://a/b/t"] for offset in (*state.begin, *state.offsets)] == [
        (3, 10),
        (3, 11),
    ]
    write(tmp_path, "commits", 11)
    assert not read_checkpoint(tmp_path.as_uri()).unfinished


def test_named_sources_of_the_second_version_of_the_log_are_found() -> None:
    text = f"v2\n{{}}\nreadings:{ours(1)}\nother:{KAFKA}"
    assert offsets_in(text) == (OFFSET.moved_to({"persistent://a/b/t": Position(3, 1)}),)


def test_what_is_no_checkpoint_of_this_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no offsets"):
        read_checkpoint(str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="has no offsets"):
        read_checkpoint((tmp_path / "missing").as_uri())
    with pytest.raises(ConfigError, match="cannot be reached"):
        read_checkpoint("nowhere://bucket/checkpoint")
    write(tmp_path, "offsets", 0, KAFKA)
    with pytest.raises(ConfigError, match="does not read format pulsebridge"):
        read_checkpoint(str(tmp_path))
    write(tmp_path, "offsets", 1, json.dumps(OFFSET.to_json() | {"v": 9}))
    with pytest.raises(ContractError, match="offset of version 9"):
        read_checkpoint(str(tmp_path))


def test_a_time_is_iso_an_age_or_milliseconds() -> None:
    assert time_ms("1700000000000", 5) == 1_700_000_000_000
    assert time_ms("2h", 7_200_500) == 500
    assert time_ms("2023-11-14T22:13:20Z", 5) == 1_700_000_000_000
    with pytest.raises(ConfigError, match="--at yesterday: neither a time nor an age"):
        time_ms("yesterday", 5)
