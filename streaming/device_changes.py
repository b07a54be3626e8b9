"""What changes the latest state of a device, as rows of one shape: readings of silver, and what Pulsar's topics tell.

A row has ``device`` and one of these, the others are null: ``reading`` with its ``metric`` (``''`` where silver has
none), ``command`` (the command itself, or what a receipt says of it), with ``receipt`` where it is told of in one, and
``presence``. It decides which message means what; which of several counts is left to ``streaming.latest``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bridge.contract import (
    C_CAUSE,
    C_DEVICE,
    C_EMITTED,
    C_EXPIRES,
    C_GROUP,
    C_ID,
    C_QOS,
    C_TOPIC,
    COMMANDS_TOPIC,
    PRESENCE_TOPIC,
    RECEIPT_COLUMNS,
    RECEIPTS_TOPIC,
)
from streaming.tables import COMMAND_FIELDS, DEVICE_FIELDS, PRESENCE_FIELDS, READING_FIELDS, RECEIPT_FIELDS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from bridge.settings import Settings

__all__ = ["TOPICS", "of_silver", "of_topics", "rows_of", "topics"]

TOPICS: Final = (COMMANDS_TOPIC, RECEIPTS_TOPIC, PRESENCE_TOPIC)
"""The topics that tell of devices, by their local names."""
_NEEDED: Final = (
    "value", "__key", "__topic", "__publishTime", "__messageProperties", "ledger_id", "entry_id", "batch_index",
)  # fmt: skip
_PRESENCE: Final = "seen_us bigint, link string"


def topics(spark: SparkSession, settings: Settings) -> DataFrame:
    """Return the stream of those topics, from the earliest that Pulsar still holds."""
    from sources.options import connection_options

    options = {
        **connection_options(settings.pulsar),
        "topics": ",".join(settings.pulsar.system_topic(name) for name in TOPICS),
        "predefinedSubscription": settings.streaming.latest_subscription,
        "startingOffsets": "earliest",
        # Push or ingest make them, which may never run here.
        "waitingForNonExistedTopic": "true",
        "maxRowsPerTrigger": str(settings.streaming.max_rows_per_trigger),
        "columns": ",".join(_NEEDED),
    }
    return spark.readStream.format("pulsebridge").options(**options).load()


def of_silver(silver: DataFrame) -> DataFrame:
    """Return the changes that readings make. One without a device, or without a time, changes nothing."""
    from pyspark.sql import functions as F

    rows = silver.where("device IS NOT NULL AND event_time IS NOT NULL").withColumn(
        "metric", F.coalesce("metric", F.lit(""))
    )
    return rows_of(rows, reading=F.struct(*(c.name for c in READING_FIELDS)))


def of_topics(messages: DataFrame) -> DataFrame:
    """Return the changes that messages of ``TOPICS`` make, with the columns of ``format("pulsebridge")``.

    Commands and receipts of a whole group belong to no device and change nothing, nor does what cannot be read.
    """
    from pyspark.sql import functions as F

    schema = ", ".join(f"`{name}` {kind}" for name, kind in RECEIPT_COLUMNS)
    text = F.col("value").cast("string")
    kind = F.regexp_extract("__topic", r"([^/]+?)(-partition-\d+)?$", 1)
    rows = messages.select(
        *_NEEDED,
        F.when(kind == COMMANDS_TOPIC, F.col("__messageProperties")).alias("c"),
        F.when(kind == RECEIPTS_TOPIC, F.from_json(text, schema)).alias("r"),
        F.when(kind == PRESENCE_TOPIC, F.from_json(F.coalesce(text, F.lit("")), _PRESENCE)).alias("p"),
        kind.alias("kind"),
    )
    # An empty payload takes the device's presence away.
    gone = F.coalesce(F.length("value"), F.lit(0)) == 0
    is_presence = (F.col("kind") == PRESENCE_TOPIC) & (gone | F.col("p.seen_us").isNotNull())
    is_command = F.col("c").isNotNull() & _said(C_ID).isNotNull()
    is_receipt = F.col("r.command_id").isNotNull()
    device = (
        F.when(is_command, _said(C_DEVICE))
        .when(is_receipt, F.col("r.device"))
        .when(is_presence, F.col("__key"))
    )
    found = rows.withColumn("device", F.nullif(device, F.lit(""))).where("device IS NOT NULL")
    told = F.when(is_command, _command()).when(is_receipt, _command_of_receipt())
    return rows_of(
        found,
        command=told,
        receipt=F.when(is_receipt, _receipt()),
        presence=F.when(is_presence, _presence()),
    )


def rows_of(rows: DataFrame, **told: Column) -> DataFrame:
    """Return rows of this module's shape from rows with ``device``, and ``metric`` where there is a reading."""
    from pyspark.sql import functions as F

    metric = "metric" if "reading" in told else F.lit(None).cast("string").alias("metric")
    return rows.select(
        "device",
        metric,
        *(told.get(c.name, F.lit(None)).cast(c.type).alias(c.name) for c in DEVICE_FIELDS),
    )


def _said(name: str) -> Any:
    from pyspark.sql import functions as F

    return F.try_element_at(F.col("c"), F.lit(name))


def _command() -> Column:
    from pyspark.sql import functions as F

    emitted, expires = _said(C_EMITTED).try_cast("bigint"), _said(C_EXPIRES).try_cast("bigint")
    told = {
        "command_id": _said(C_ID),
        "mqtt_topic": _said(C_TOPIC),
        "qos": F.coalesce(_said(C_QOS).try_cast("int"), F.lit(1)),
        # Where its writer does not say when, the moment at which Pulsar took it orders it.
        "emitted_at": F.coalesce(F.when(emitted > 0, F.timestamp_micros(emitted)), F.col("__publishTime")),
        "expires_at": F.when(expires > 0, F.timestamp_millis(expires)),
        "cause": _said(C_CAUSE),
        "group": _said(C_GROUP),
    }
    return F.struct(*(told[c.name].alias(c.name) for c in COMMAND_FIELDS))


def _command_of_receipt() -> Column:
    """Return what a receipt says of its command, which may be read later; without ``qos``, as a sign of that."""
    from pyspark.sql import functions as F

    told = {
        "command_id": F.col("r.command_id"),
        "mqtt_topic": F.col("r.mqtt_topic"),
        "emitted_at": F.coalesce(_time("emitted_at"), _time("pushed_at"), F.col("__publishTime")),
        "group": F.nullif(F.col("r.group"), F.lit("")),
    }
    null = F.lit(None)
    return F.struct(*(told.get(c.name, null).cast(c.type).alias(c.name) for c in COMMAND_FIELDS))


def _receipt() -> Column:
    from pyspark.sql import functions as F

    times = ("pushed_at", "confirmed_at", "answered_at")
    told = {name: _time(name) for name in times} | {
        name: F.col(f"r.{name}") for name in ("state", "reason", "attempts")
    }
    return F.struct(*(told.get(c.name, F.col(c.name)).alias(c.name) for c in RECEIPT_FIELDS))


def _time(name: str) -> Column:
    from pyspark.sql import functions as F

    micros = F.col(f"r.{name}_us")
    return F.when(micros > 0, F.timestamp_micros(micros))


def _presence() -> Column:
    from pyspark.sql import functions as F

    told = {"seen_at": F.timestamp_micros(F.col("p.seen_us")), "link": F.col("p.link")}
    return F.struct(*(told.get(c.name, F.col(c.name)).alias(c.name) for c in PRESENCE_FIELDS))
