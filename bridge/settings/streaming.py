"""Settings of the pipeline in Spark: its flows, its tables, and its limits."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, get_args

from pydantic import Field, field_validator

from bridge.settings.base import COMMON, Section
from bridge.settings.tables import Decoding, TableDeclaration, TimeZone, filter_problem
from bridge.settings.units import Duration, Size

__all__ = [
    "BUILT_IN",
    "BuiltIn",
    "Profile",
    "QualitySettings",
    "SparkSettings",
    "StreamingSettings",
    "TriggerSettings",
]

Profile = Literal["latency", "throughput", "commands"]
"""Profiles of Spark's settings on one machine: for batches of hundreds of rows, of a million, or commands only."""

BuiltIn = Literal["bronze", "readings", "gold", "device_latest", "alerts"]
BUILT_IN: Final[tuple[BuiltIn, ...]] = get_args(BuiltIn)
"""The built-in flows in order: each follows the flow whose table it reads."""


class TriggerSettings(Section):
    """When micro-batches start, and their largest size."""

    interval: Duration = Field(Duration("500ms"), ge=0, json_schema_extra=COMMON)
    """Time between micro-batches; 0: as soon as possible."""
    commands_interval: Duration = Field(Duration("400ms"), ge=0)
    """The same for flows that write commands. Each of their micro-batches costs about a tenth of a second of CPU for
    any number of rows; the tables share that CPU."""
    views_interval: Duration = Field(Duration("5s"), ge=0)
    """Time between micro-batches of views and of ``device_latest``."""
    max_rows: int = Field(20_000, ge=1)
    """Maximum messages of one micro-batch."""
    max_size: Size = Field(Size("64MiB"), ge=1)
    """Maximum size of one micro-batch, as Pulsar stores its messages; at least one entry."""


class QualitySettings(Section):
    """The runs of the Great Expectations checkpoints, and the limit of bad rows."""

    interval: Duration = Field(Duration("60s"), ge=0)
    """Time between two runs of the Great Expectations checkpoints; 0: none."""
    max_rows: int = Field(10_000, ge=1)
    """Maximum rows that one run of a checkpoint validates."""
    max_bad_share: float = Field(0.1, gt=0, le=1)
    """Share of bad rows in a batch beyond which ``on_bad_share`` applies. 1: no limit."""
    min_batch_rows: int = Field(100, ge=1)
    """Smallest batch, in rows, to which ``max_bad_share`` applies."""
    on_bad_share: Literal["alert", "stop"] = "alert"
    """Beyond max_bad_share: alert (the metric pulsebridge_stream_validated_rows_total shows it), or stop the job before
    the batch is written."""


class SparkSettings(Section):
    """The Spark driver of ``pulsebridge stream``."""

    master: str = Field("local[2]", min_length=1)
    """Spark master of ``pulsebridge stream``."""
    profile: Profile = "latency"
    """Spark's settings if master is local: for small batches, for large ones (conf/spark-throughput.conf), such as a
    backlog with --available-now, or for commands only (conf/spark-commands.conf), as with --part commands."""
    nice: int = Field(0, ge=0, le=19)
    """Niceness of a driver on this machine, 0 to 19; without a terminal it applies to the whole session. Set 5 for
    --part tables next to --part commands."""
    log: Path = Path("build/spark.log")
    """File for the output of Spark and its Python workers, if the driver runs on this machine; at 10 MiB it becomes
    <file>.1."""
    driver_memory: Size = Field(Size("2GiB"), ge=256 * 1024 * 1024)
    """Heap of the Spark driver of ``pulsebridge stream``, in whole MiB."""


class StreamingSettings(Section):
    """The locations of tables and checkpoints, and the flows of the job."""

    root: str = Field("build/lakehouse", json_schema_extra=COMMON)
    """Folder or URI of the checkpoints, and of tables without a schema."""
    schema_name: str | None = Field(None, pattern=r"^\w+(\.\w+)?$", json_schema_extra=COMMON)
    """Schema (catalog.schema) of the tables; default: each is a folder below root."""
    built_in: tuple[BuiltIn, ...] = ("bronze", "readings", "alerts")
    """Built-in flows that run, in addition to those of ``modules`` and ``tables``."""
    modules: tuple[str, ...] = Field((), json_schema_extra=COMMON)
    """Python modules, by name or by file, that declare tables, views, flows and commands (``from streaming import
    pipelines as dp``)."""
    tables: tuple[TableDeclaration, ...] = Field((), json_schema_extra=COMMON)
    """Typed tables, in addition to those of ``ingest.presets``. A table of the same name replaces that of a preset."""
    decoders: tuple[Decoding, ...] = ()
    """Decodings of some messages for the table readings, like that of a table without ``fields``: a custom function, a
    time zone, or ``format: none`` for messages that are not readings. All others have the default decoding."""
    time_zone: TimeZone | None = None
    """IANA name of the zone of times without one, as Europe/Berlin; none: a row with such a time gets its time of
    arrival."""
    topics: tuple[str, ...] = ()
    """Local names of the Pulsar topics to read; default: those of the routes of ingest, else every topic of the
    readings namespaces."""
    subscription: str = Field("pulsebridge", min_length=1)
    """Prefix of the names of the durable Pulsar subscriptions, one for each flow that reads topics."""
    trigger: TriggerSettings = Field(default_factory=TriggerSettings)
    clock_skew: Duration = Field(Duration("10m"), gt=0)
    """Maximum lead of the time of a row over its arrival and Spark's clock. Beyond: quarantine."""
    max_added_columns: int = Field(100, ge=0)
    """Maximum number of columns that ``schema_evolution: add_columns`` adds to a table; further fields stay in
    _rescued_data."""
    gold_window: Duration = Field(Duration("5m"), ge=1)
    """Length of gold's windows of event time, in whole seconds; they start at the epoch."""
    suites: Path | None = Field(None, json_schema_extra=COMMON)
    """Folder of the Great Expectations project with the suites of the tables."""
    quality: QualitySettings = Field(default_factory=QualitySettings)
    alerts: Path | None = Field(None, json_schema_extra=COMMON)
    """File of the alert rules; default: none."""
    silence_grace: Duration = Field(Duration("30s"), ge=0)
    """Lag of the clock of silence alerts after the latest arrival of all devices: at least the lag between topics."""
    alert_state_expiry: Duration = Field(Duration("30d"), gt=0)
    """Time without a message after which alerts delete the state of a device; later it counts as a new device."""
    restart_budget: int = Field(10, ge=0)
    """Maximum restarts of a failed flow within ``restart_window``; then its failure stops the job. A server that does
    not answer counts only with --available-now."""
    restart_window: Duration = Field(Duration("10m"), gt=0)
    """Time in which restarts are counted."""
    spark: SparkSettings = Field(default_factory=SparkSettings)

    def subscription_of(self, flow: str) -> str:
        """Return the name of a flow's subscription in Pulsar."""
        return "-".join(part for part in (self.subscription, flow) if part)

    @field_validator("tables")
    @classmethod
    def _distinct(cls, tables: tuple[TableDeclaration, ...]) -> tuple[TableDeclaration, ...]:
        if len({table.name.lower() for table in tables}) < len(tables):
            raise ValueError("two tables have the same name")
        return tables

    @field_validator("decoders")
    @classmethod
    def _long(cls, decodings: tuple[Decoding, ...]) -> tuple[Decoding, ...]:
        if any(one.fields is not None for one in decodings):
            raise ValueError("the table readings has a row for each field: declare fields under tables")
        problem = filter_problem(decodings)
        if problem is not None:
            raise ValueError(problem)
        return decodings
