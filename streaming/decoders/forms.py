"""Takes payloads apart in Spark: bytes into a document, a document into its readings.

What makes a payload undecodable is told in words in the column ``fault``; nothing that a device sends raises. Which
fields of a reading become which columns is decided by ``streaming.readings``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from streaming.decoders.settings import Decoder

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["documents", "elements"]


def documents(rows: DataFrame) -> DataFrame:
    """Add ``json``, the payload as a VARIANT, and ``fault``. ``decoder`` is the number of a row's decoder."""
    from pyspark.sql import functions as F

    json = F.expr("try_parse_json(try_validate_utf8(CAST(payload AS STRING)))")
    undecodable = F.col("decoder").isNotNull() & F.col("json").isNull()
    fault = F.when(undecodable, F.lit("the payload is not UTF-8 JSON"))
    return rows.withColumn("json", json).withColumn("fault", fault)


def elements(rows: DataFrame, decoders: Sequence[Decoder]) -> DataFrame:
    """Replace ``json`` by ``item``, a row for each reading, and ``element``, its place in the message.

    A message whose array is empty holds no reading, and gives no row.
    """
    from pyspark.sql import functions as F

    if all(d.elements is None for d in decoders):
        return rows.withColumn("item", F.col("json")).withColumn("element", F.lit(0)).drop("json")
    many = _by_decoder(decoders, lambda d: F.lit(d.elements is not None)).cast("boolean")
    found = _by_decoder(
        decoders,
        lambda d: (
            F.array("json") if d.elements is None else F.try_variant_get("json", d.elements, "array<variant>")
        ),
    )
    held = F.size("readings")
    limit = _by_decoder(decoders, lambda d: F.lit(d.max_elements if d.elements else None)).cast("int")
    place = _by_decoder(decoders, lambda d: F.lit(d.elements)).cast("string")
    fault = F.coalesce(
        "fault",
        F.when(many & F.col("readings").isNull(), F.concat(F.lit("there is no array at "), place)),
        F.when(held > limit, F.concat(F.lit("more readings than max_elements, "), limit.cast("string"))),
    )
    rows = rows.withColumn("readings", found).withColumn("fault", fault)
    rows = rows.withColumn("readings", F.when(F.col("fault").isNull(), F.col("readings")))
    apart = many & F.col("fault").isNull()
    # No copy of the whole payload goes with each of its readings.
    rows = rows.withColumn("payload", F.when(~F.coalesce(apart, F.lit(False)), F.col("payload")))
    rows = rows.where(F.col("readings").isNull() | (held > 0)).drop("json")
    kept = [F.col(f"`{name}`") for name in rows.columns if name != "readings"]
    rows = rows.select(*kept, F.posexplode_outer("readings").alias("element", "item"))
    own = F.coalesce("payload", F.encode(F.to_json("item"), "UTF-8"))
    return rows.withColumn("payload", own).withColumn("element", F.coalesce("element", F.lit(0)))


def _by_decoder(decoders: Sequence[Decoder], column: Callable[[Decoder], Column]) -> Column:
    from pyspark.sql import functions as F

    found = F.lit(None)
    for n, decoder in reversed(list(enumerate(decoders))):
        found = F.when(F.col("decoder") == n, column(decoder)).otherwise(found)
    return found
