"""Settings of the Spark jobs: tables, checkpoints, triggers, quality and rules."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from bridge.settings.base import Section

__all__ = ["StreamingSettings"]


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
    topics: tuple[str, ...] = Field(
        (),
        description="Local names of the Pulsar topics to read; default: every topic of the readings namespace.",
    )
    subscription: str = Field(
        "pulsebridge-bronze",
        min_length=1,
        description="Durable Pulsar subscription that holds the data for bronze.",
    )
    trigger_s: float = Field(
        0.5, ge=0, description="Time between micro-batches, in seconds; 0 as fast as possible."
    )
    max_rows_per_trigger: int = Field(
        20_000, ge=1, description="Readings that one micro-batch of bronze takes at most."
    )
    clock_skew_s: float = Field(
        600.0,
        gt=0,
        description="How far a device's time may be ahead of arrival, in seconds; beyond it: quarantine.",
    )
    expectations: Path | None = Field(
        None,
        description="Suite that splits silver from quarantine; default: expectations/silver.json as shipped.",
    )
    rules: Path | None = Field(
        None, description="File of the decoders and the alert rules; default: rules.yaml as shipped."
    )
    quality_interval_s: float = Field(
        60.0, ge=0, description="Time between two verdicts of Great Expectations, in seconds; 0 for none."
    )
    quality_rows: int = Field(10_000, ge=1, description="Newest rows that one verdict judges at most.")
    master: str = Field("local[2]", min_length=1, description="Spark master of ``pulsebridge stream``.")
    driver_memory: str = Field(
        "1g",
        pattern=r"^[1-9][0-9]*[kmgKMG]$",
        description="Heap of the Spark driver of ``pulsebridge stream``.",
    )

    @model_validator(mode="after")
    def _distinct(self) -> StreamingSettings:
        tables = (self.bronze, self.silver, self.quarantine, self.quality_results)
        if len(set(tables)) < len(tables):
            raise ValueError("bronze, silver, quarantine and quality_results must be four different tables")
        return self
