"""Decodes payloads into readings: which JSON path of which MQTT topic is the id, the time and the value.

A decoder may leave id and time to the topic rule that took the message (``rule_fields``). It decides how a document
becomes typed columns; how bytes become a document is left to ``decoders``. Whether a reading is good is judged by the
suite (``predicates``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from bridge.errors import ConfigError
from streaming.built_once import built_once
from streaming.decoders import forms, leftovers
from streaming.decoders.paths import JsonPath
from streaming.decoders.settings import NO_ID, Decoder
from streaming.decoders.times import MICROS, as_timestamp, words_for
from streaming.rule_fields import RuleFields, by_rule

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["BAD_TIME", "UNDECODABLE", "UNKNOWN_TOPIC", "WORKING_COLUMNS", "decode", "topic_pattern"]

UNKNOWN_TOPIC: Final = "unknown_topic"
"""Rule that a row fails when no decoder's filter matches its MQTT topic."""
UNDECODABLE: Final = "undecodable"
"""Rule that a row fails when its payload is not of the decoder's form."""
BAD_TIME: Final = "bad_time"
"""Rule that a row fails when its time is there and cannot be read as the decoder's ``time_unit`` says."""


class _Said(NamedTuple):
    """Which setting of a decoder says a column, and the type in which it is taken."""

    setting: str
    type: str


WORKING_COLUMNS: Final = (
    "added",
    "decoder",
    "decoding_failures",
    "failed_rules",
    "fault",
    "item",
    "no_id",
    "notes",
    "time_fault",
)
"""What rows carry on their way to silver beside its columns and bronze's."""
_COLUMNS: Final = {
    "reading_id": _Said("id", "string"),
    "metric": _Said("metric", "string"),
    "value": _Said("value", "double"),
    "unit": _Said("unit", "string"),
    "event_time": _Said("time", "string"),
    "sent_at": _Said("sent", "bigint"),
}


def topic_pattern(mqtt_filter: str) -> str:
    """Return the regular expression of the MQTT topics that a filter matches (MQTT 5, 4.7).

    A filter that begins with a wildcard does not match topics that begin with ``$`` (MQTT-4.7.2-1).
    """
    levels = mqtt_filter.split("/")
    parts: list[str] = []
    for n, level in enumerate(levels):
        if level == "#":
            if n != len(levels) - 1:
                raise ConfigError(
                    f"filter {mqtt_filter!r}: # must be the last level", remedy="correct the filter"
                )
            # `a/#` matches `a` itself as well
            return _anchored(levels, "/".join(parts) + ("(/.*)?" if parts else ".*"))
        if level == "+":
            parts.append("[^/]*")
        elif "+" in level or "#" in level:
            raise ConfigError(
                f"filter {mqtt_filter!r}: a wildcard must fill its level", remedy="correct the filter"
            )
        else:
            parts.append("".join(c if c.isalnum() else f"\\x{{{ord(c):x}}}" for c in level))
    return _anchored(levels, "/".join(parts))


def _anchored(levels: list[str], body: str) -> str:
    guard = r"(?!\x{24})" if levels[0] in ("+", "#") else ""
    return f"^{guard}{body}$"


def decode(
    rows: DataFrame,
    decoders: Sequence[Decoder],
    rules: Sequence[RuleFields] = (),
    added: Mapping[str, str] | None = None,
    schema_evolution: str = "rescue",
) -> DataFrame:
    """Add silver's columns to bronze rows, a row for each reading, and what the readings did not meet.

    ``decoding_failures``: names of the rules not met; ``fault``: why the payload did not decode, ``time_fault``: why
    its time is none, in words, else null; ``no_id``: whether the reading has no id but its place; ``decoder``: its
    number; ``notes`` and what the fields that no decoder knows become: see ``leftovers.of_reading``.
    The first decoder that matches a row's MQTT topic decodes it. A field that is absent or of another type is null.
    ``rules`` say where the id and the time are that a decoder names no path for. The payload of an element of an
    array becomes that element, as JSON: a message with many bad ones must not be kept once for each.
    """
    decoders, rules = tuple(decoders), tuple(rules)
    rows = rows.withColumn("decoder", _first_match(decoders))
    rows = forms.documents(rows, decoders)
    # What all readings of a message share is taken before it is taken apart, so that no copy of it goes with each.
    shared = _shared(decoders, rules)
    rows = rows.withColumns(shared)
    rows = leftovers.of_message(rows, decoders, rules)
    rows = forms.elements(rows, decoders, leftovers.MESSAGE_PARTS)
    rows = rows.withColumns(_of_readings(decoders))
    rows = leftovers.of_reading(rows, decoders, rules, added or {}, schema_evolution)
    for columns in _timed(decoders):
        rows = rows.withColumns(columns)
    return rows.withColumns(_judged(decoders)).drop("item", "time_text", *shared)


@built_once
def _judged(decoders: Sequence[Decoder]) -> dict[str, Column]:
    from pyspark.sql import functions as F

    without_id = [n for n, decoder in enumerate(decoders) if decoder.id == NO_ID]
    unknown = F.when(F.col("decoder").isNull(), F.lit(UNKNOWN_TOPIC))
    undecodable = F.when(F.col("fault").isNotNull(), F.lit(UNDECODABLE))
    bad_time = F.when(F.col("time_fault").isNotNull(), F.lit(BAD_TIME))
    return {
        "event_day": F.to_date("event_time"),
        "sent_at": F.timestamp_micros(F.when(F.col("sent_at").between(*MICROS), F.col("sent_at"))),
        "publish_time": F.col("__publishTime"),
        "processed_at": F.current_timestamp(),
        "no_id": F.coalesce(F.col("decoder").isin(without_id), F.lit(False)),
        "decoding_failures": F.array_compact(F.array(unknown, undecodable, bad_time)),
    }


@built_once
def _timed(decoders: Sequence[Decoder]) -> tuple[dict[str, Column], ...]:
    """Return what replaces the text ``event_time`` by the time that it says, and adds ``time_fault``, in two steps."""
    from pyspark.sql import functions as F

    time, fault = F.lit(None).cast("timestamp"), F.lit(None).cast("string")
    for unit in sorted({d.time_unit for d in decoders}):
        of_unit = F.col("decoder").isin([n for n, d in enumerate(decoders) if d.time_unit == unit])
        time = F.when(of_unit, as_timestamp("event_time", unit)).otherwise(time)
        fault = F.when(of_unit, words_for("event_time", unit)).otherwise(fault)
    unread = F.col("event_time").isNull() & F.col("time_text").isNotNull()
    return (
        {"time_text": F.col("event_time"), "event_time": time, "time_fault": fault},
        {"time_fault": F.when(unread, F.col("time_fault"))},
    )


@built_once
def _shared(decoders: Sequence[Decoder], rules: Sequence[RuleFields]) -> dict[str, Column]:
    """Return what messages say of their readings; these columns are there until the readings have them."""

    def said(decoder: Decoder, name: str) -> Column | None:
        return _in_message(decoder, name, rules) if _is_shared(decoder, name) else None

    names = [name for name in _COLUMNS if any(_is_shared(d, name) for d in decoders)]
    return {f"message_{name}": _by_decoder(decoders, name, said) for name in names}


@built_once
def _of_readings(decoders: Sequence[Decoder]) -> dict[str, Column]:
    """Return what readings say, with what their messages say filled in."""
    return {name: _by_decoder(decoders, name, _in_reading) for name in _COLUMNS}


def _by_decoder(
    decoders: Sequence[Decoder], name: str, column: Callable[[Decoder, str], Column | None]
) -> Column:
    from pyspark.sql import functions as F

    kind = _COLUMNS[name].type
    found = F.lit(None).cast(kind)
    for n, decoder in reversed(list(enumerate(decoders))):
        said = column(decoder, name)
        if said is not None:
            found = F.when(F.col("decoder") == n, said.cast(kind)).otherwise(found)
    return found


def _in_message(decoder: Decoder, name: str, rules: Sequence[RuleFields]) -> Column:
    from pyspark.sql import functions as F

    text = getattr(decoder, _COLUMNS[name].setting)
    if (name, text) == ("reading_id", NO_ID):
        return F.concat_ws(":", "ledger_id", "entry_id", "batch_index")
    if text is None:
        return by_rule(rules, "id" if name == "reading_id" else "time")
    return F.try_variant_get("json", JsonPath.parse(text).text, _COLUMNS[name].type)


def _in_reading(decoder: Decoder, name: str) -> Column:
    from pyspark.sql import functions as F

    if _is_shared(decoder, name):
        shared = F.col(f"message_{name}")
        # One id for many readings: the place in the message tells them apart, and is the same when it comes again.
        many = name == "reading_id" and decoder.elements is not None
        return F.concat(shared, F.lit("#"), F.col("element").cast("string")) if many else shared
    text = getattr(decoder, _COLUMNS[name].setting)
    if text is None or not text.startswith("$"):
        return F.lit(text)
    return F.try_variant_get("item", text, _COLUMNS[name].type)


def _is_shared(decoder: Decoder, name: str) -> bool:
    """Whether a column is said by the whole message: by the topic rule, or by a path that begins with ``$$``."""
    text = getattr(decoder, _COLUMNS[name].setting)
    if text is None or (name, text) == ("reading_id", NO_ID):
        return name in ("reading_id", "event_time")
    return bool(text.startswith("$$"))


@built_once
def _first_match(decoders: Sequence[Decoder]) -> Column:
    from pyspark.sql import functions as F

    found = F.lit(None).cast("int")
    for n, decoder in reversed(list(enumerate(decoders))):
        found = F.when(F.col("mqtt_topic").rlike(topic_pattern(decoder.filter)), F.lit(n)).otherwise(found)
    return found
