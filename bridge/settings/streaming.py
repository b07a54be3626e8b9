"""Settings of the Spark jobs: tables, checkpoints, triggers, quality and rules."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, get_args

from pydantic import Field, model_validator

from bridge.settings.base import Section
from bridge.settings.tables import TableDeclaration

__all__ = ["QUERIES", "QueryName", "StreamingSettings"]

QueryName = Literal["bronze", "silver", "alerts", "gold", "latest"]

QUERIES: Final[tuple[QueryName, ...]] = get_args(QueryName)
"""The queries of the Spark jobs, each after the one whose table it reads."""


class StreamingSettings(Section):
    """Where the tables and checkpoints are and how the jobs run."""

    root: str = Field(
        "build/lakehouse", description="Folder or URI of tables given by path and of the checkpoints."
    )
    bronze: str = Field(
        "bronze", description="Bronze table: a name (catalog.schema.table), a path, or a folder below root."
    )
    silver: str = Field("silver", description="Silver table, likewise.")
    quarantine: str = Field("quarantine", description="Quarantine table, likewise.")
    quality_results: str = Field(
        "quality_results", description="Table of the verdicts of Great Expectations, likewise."
    )
    gold: str = Field("gold", description="Table of the aggregates by window, likewise.")
    late: str = Field("late", description="Table of the readings that came after their window, likewise.")
    device_latest: str = Field(
        "device_latest", description="Table of the latest state of each device and metric, likewise."
    )
    queries: tuple[QueryName, ...] = Field(
        ("bronze", "silver", "alerts"),
        min_length=1,
        description="Queries that run where ``--only`` names none; gold and latest as well where somebody reads their tables.",
    )
    tables: tuple[TableDeclaration, ...] = Field(
        (),
        description="Typed tables of one's own, beside those of ``ingest.presets``; one of the same name replaces theirs.",
    )
    topics: tuple[str, ...] = Field(
        (),
        description="Local names of the Pulsar topics to read; default: every topic of the readings namespace.",
    )
    subscription: str = Field(
        "pulsebridge-bronze",
        min_length=1,
        description="Durable Pulsar subscription that holds the data for bronze.",
    )
    latest_subscription: str = Field(
        "pulsebridge-latest",
        min_length=1,
        description="Durable Pulsar subscription that holds commands, receipts and presence for the latest state.",
    )
    trigger_s: float = Field(
        0.5, ge=0, description="Time between micro-batches, in seconds; 0 as fast as possible."
    )
    max_rows_per_trigger: int = Field(
        20_000, ge=1, description="Readings that one micro-batch of bronze takes at most."
    )
    max_bytes_per_trigger: int = Field(
        64 * 1024 * 1024,
        ge=1,
        description="Bytes, as Pulsar stores them, that one micro-batch of bronze takes at most; one entry at least.",
    )
    clock_skew_s: float = Field(
        600.0,
        gt=0,
        description="How far a device's time may be ahead of arrival, and of the clock of Spark when bronze stores the "
        "message, in seconds; beyond it: quarantine.",
    )
    schema_evolution: Literal["rescue", "add_columns", "fail"] = Field(
        "rescue",
        description="What becomes of fields that a decoder does not know, unless it says so itself: JSON in _rescued_data, a "
        "column of silver, or an error that stops the query.",
    )
    max_added_columns: int = Field(
        100,
        ge=0,
        description="Columns that silver may have for such fields; those beyond stay in _rescued_data.",
    )
    gold_window_s: int = Field(
        300, ge=1, description="Length of gold's windows of event time, in seconds; they begin at the epoch."
    )
    gold_watermark_s: float = Field(
        3600.0,
        ge=0,
        description="How far gold's watermark is behind the latest event time, in seconds: readings that are later "
        "than that go to the late table.",
    )
    gold_trigger_s: float = Field(10.0, ge=0, description="Time between micro-batches of gold, in seconds.")
    latest_trigger_s: float = Field(
        5.0, ge=0, description="Time between micro-batches of the latest state, in seconds."
    )
    expectations: Path | None = Field(
        None,
        description="Suite that splits silver from quarantine; default: expectations/silver.json as shipped.",
    )
    rules: Path | None = Field(
        None, description="File of the decoders and the alert rules; default: rules.yaml as shipped."
    )
    silence_grace_s: float = Field(
        30.0,
        ge=0,
        description="How far the clock of alerts of silence is behind the latest arrival of all devices, in seconds: as "
        "much as topics may be behind each other.",
    )
    alert_state_days: float = Field(
        30.0,
        gt=0,
        description="How long a device may be away until alerts keeps nothing of it any more, in days; then it is a new one.",
    )
    quality_interval_s: float = Field(
        60.0, ge=0, description="Time between two verdicts of Great Expectations, in seconds; 0 for none."
    )
    quality_rows: int = Field(10_000, ge=1, description="Newest rows that one verdict judges at most.")
    bad_share_limit: float = Field(
        0.1,
        gt=0,
        le=1,
        description="Share of bad rows among those that silver judged within bad_share_window_s; beyond it see "
        "on_bad_share. 1: no limit.",
    )
    bad_share_window_s: float = Field(
        300.0, gt=0, le=86_400, description="Time over which the share of bad rows is taken, in seconds."
    )
    bad_share_min_rows: int = Field(
        100, ge=1, description="Rows within that time below which no share is taken."
    )
    on_bad_share: Literal["alert", "stop"] = Field(
        "alert",
        description="Beyond bad_share_limit: alert (a WARNING and the metric pulsebridge_silver_bad_share), or stop the "
        "job before the batch is written.",
    )
    master: str = Field("local[2]", min_length=1, description="Spark master of ``pulsebridge stream``.")
    driver_memory: str = Field(
        "2g",
        pattern=r"^[1-9][0-9]*[kmgKMG]$",
        description="Heap of the Spark driver of ``pulsebridge stream``.",
    )

    @model_validator(mode="after")
    def _distinct(self) -> StreamingSettings:
        own = [table.name.lower() for table in self.tables]
        if len(set(own)) < len(own):
            raise ValueError("streaming.tables: two tables have the same name")
        names = ("bronze", "silver", "quarantine", "quality_results", "gold", "late", "device_latest")
        if len({getattr(self, name) for name in names}) < len(names):
            raise ValueError(f"{', '.join(names[:-1])} and {names[-1]} must be different tables")
        return self
