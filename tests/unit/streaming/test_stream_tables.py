from __future__ import annotations

from pathlib import Path

import pytest
from streaming.spark_submit import submit_command

from bridge.contract import SOURCE_COLUMNS
from bridge.errors import ConfigError
from bridge.settings import Settings, StreamingSettings, TopicRule
from bridge.settings.ingest import IngestSettings
from streaming.job import topics_of
from streaming.tables import BRONZE_COLUMNS, Tables


def test_a_table_is_a_name_a_path_or_a_folder_below_the_root(tmp_path: Path) -> None:
    tables = Tables.of(
        StreamingSettings(root=str(tmp_path), bronze="main.iot.bronze", silver="s3://bucket/silver")
    )
    assert tables.bronze.sql == "`main`.`iot`.`bronze`"
    assert tables.silver.sql == "delta.`s3://bucket/silver`"
    assert tables.quarantine.where == f"{tmp_path}/quarantine"
    assert tables.checkpoint("silver") == f"{tmp_path}/checkpoints/silver"


def test_what_names_no_table_is_refused_with_its_setting() -> None:
    with pytest.raises(ConfigError, match=r"streaming\.bronze"):
        Tables.of(StreamingSettings(bronze="a b"))


def test_bronze_holds_every_fact_of_the_source_once() -> None:
    kept = {c.name: c.type for c in BRONZE_COLUMNS}
    assert dict(SOURCE_COLUMNS).items() - kept.items() == {("value", "binary")}
    assert all(c.comment for c in BRONZE_COLUMNS)


def test_the_topics_are_those_given_else_those_of_the_rules() -> None:
    rules = (
        TopicRule(name="w", filter="wearables/+device/+metric", topic="wearables", device="{device}"),
        TopicRule(
            name="y", filter="yard/+device/#", topic="{level1}", device="{device}"
        ),  # one topic as well
    )
    ingest = IngestSettings(rules=rules)
    assert topics_of(Settings(ingest=ingest)) == [
        "persistent://public/pulsebridge/wearables", "persistent://public/pulsebridge/yard",
    ]  # fmt: skip
    given = Settings(ingest=ingest, streaming=StreamingSettings(topics=("a", "b", "a")))
    assert [t.rpartition("/")[2] for t in topics_of(given)] == ["a", "b"]


def test_the_submit_line_brings_the_jars_and_resolves_nothing() -> None:
    jar = Path("/cache/delta.jar")
    command = submit_command(Settings(), ["--available-now"], jars=[jar])
    assert command[0].endswith("spark-submit")
    assert command[command.index("--jars") + 1] == str(jar)
    assert "--packages" not in command
    assert command[-2:] == [command[-2], "--available-now"]
    assert command[-2].endswith("streaming/job.py")
