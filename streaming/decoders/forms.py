"""Takes payloads apart in Spark: bytes into a document, a document into its readings.

What makes a payload undecodable is told in words in the column ``fault``; nothing that a device sends raises. Which
fields of a reading become which columns is decided by ``streaming.readings``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from streaming.built_once import built_once
from streaming.decoders.settings import Decoder
from streaming.decoders.unpacking import unpack_rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["documents", "elements"]

_NOT_JSON: Final = "the payload gives no document that Spark can read"
_WORDS: Final = {
    "json": "the payload is not UTF-8 JSON, or is beyond Spark's limits: 1,000 levels, 1,000 digits of a number",
    "csv": "the payload is not one line of UTF-8 CSV, or has far more fields than it should",
}


def documents(rows: DataFrame, decoders: Sequence[Decoder]) -> DataFrame:
    """Add ``json``, the payload as a VARIANT, and ``fault``. ``decoder`` is the number of a row's decoder."""

    rows = unpack_rows(rows, decoders)
    made = _documents(tuple(decoders))
    for name in ("text", "json", "fault"):
        rows = rows.withColumn(name, made[name])
    return rows.drop("body", "text", "document")


@built_once
def _documents(decoders: Sequence[Decoder]) -> dict[str, Column]:
    from pyspark.sql import functions as F

    words = _by_decoder(decoders, lambda d: F.lit(_WORDS.get(d.format, _NOT_JSON)))
    fault = F.when(F.col("json").isNull(), F.coalesce("fault", words))
    return {
        "text": F.expr("try_validate_utf8(CAST(body AS STRING))"),
        "json": _by_decoder(decoders, _document).cast("variant"),
        "fault": fault.cast("string"),
    }


def _document(decoder: Decoder) -> Column:
    """Return the document of a payload as a VARIANT, null where it is not of the decoder's form."""
    from pyspark.sql import functions as F

    if decoder.format == "json":
        return F.expr("try_parse_json(text)")
    if decoder.format == "csv":
        return _csv(decoder)
    if decoder.format == "raw":
        return F.expr("CAST(coalesce(text, base64(body)) AS VARIANT)")
    return F.expr("try_parse_json(document)")


def _csv(decoder: Decoder) -> Column:
    """Return a line as an object of its fields, or all lines as an array of them. Empty fields are absent.

    A line with more fields than there are names is none: Spark raises where its parser meets too many.
    """
    from pyspark.sql import functions as F

    names = decoder.csv_names
    schema = ", ".join(f"`{name.replace('`', '``')}` STRING" for name in names)
    separator = decoder.separator

    def read(line: Column) -> Column:
        return F.to_json(F.from_csv(line, schema, {"mode": "PERMISSIVE", "sep": separator}))

    def fits(line: Column) -> Column:
        separators = F.length(line) - F.length(F.replace(line, F.lit(separator), F.lit("")))
        return (F.length(F.trim(line)) > 0) & (separators < len(names))

    if decoder.elements is None:
        line = F.regexp_replace("text", r"\r?\n$", "")
        return F.try_parse_json(F.when(fits(line) & ~line.rlike(r"[\r\n]"), read(line)))
    lines = F.filter(F.split("text", r"\r?\n"), lambda line: F.length(line) > 0)
    all_fit = (F.size(lines) > 0) & F.forall(lines, fits)
    objects = F.concat(F.lit("["), F.array_join(F.transform(lines, read), ","), F.lit("]"))
    return F.try_parse_json(F.when(all_fit, objects))


def elements(rows: DataFrame, decoders: Sequence[Decoder], once: Sequence[str] = ()) -> DataFrame:
    """Replace ``json`` by ``item``, a row for each reading, and ``element``, its place in the message.

    ``once``: columns of the message that go with its first reading alone, where they are there. A message whose array is empty holds no reading, and gives no row.
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
    once = [name for name in once if name in rows.columns]
    kept = [F.col(f"`{name}`") for name in rows.columns if name not in ("readings", *once)]

    def reading(item: Column, place: Column) -> Column:
        return F.struct(item.alias("item"), *(F.when(place == 0, F.col(name)).alias(name) for name in once))

    rows = rows.select(*kept, F.posexplode_outer(F.transform("readings", reading)).alias("element", "one"))
    rows = rows.withColumns({name: F.col("one")[name] for name in ("item", *once)}).drop("one")
    own = F.coalesce("payload", F.encode(F.to_json("item"), "UTF-8"))
    return rows.withColumn("payload", own).withColumn("element", F.coalesce("element", F.lit(0)))


def _by_decoder(decoders: Sequence[Decoder], column: Callable[[Decoder], Column]) -> Column:
    from pyspark.sql import functions as F

    found = F.lit(None)
    for n, decoder in reversed(list(enumerate(decoders))):
        found = F.when(F.col("decoder") == n, column(decoder)).otherwise(found)
    return found
