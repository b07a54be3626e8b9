"""Decodes payloads into readings: which JSON path of which MQTT topic is the id, the time and the value.

A decoder may leave id and time to the topic rule that took the message (``rule_fields``). It decides how a payload becomes typed columns. Whether a reading is good is judged by the suite (``predicates``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from bridge.errors import ConfigError
from streaming.rule_fields import Part, RuleFields, by_rule, rule_says

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "NO_ID",
    "UNDECODABLE",
    "UNKNOWN_TOPIC",
    "Decoder",
    "as_recipe",
    "check_rules",
    "decode",
    "load_decoders",
    "parse_decoders",
    "topic_pattern",
]

NO_ID: Final = "none"
"""In place of a path: each message is a reading of its own, named by its place in Pulsar; what repeats is counted."""
UNKNOWN_TOPIC: Final = "unknown_topic"
"""Rule that a row fails when no decoder's filter matches its MQTT topic."""
UNDECODABLE: Final = "undecodable"
"""Rule that a row fails when its payload is not UTF-8 JSON."""


@dataclass(frozen=True)
class Decoder:
    """How the payloads on one filter of MQTT topics become readings. Paths are JSON paths (``$.id``)."""

    filter: str
    metric: str
    value: str
    id: str | None = None
    """Path of the reading's id; None leaves it to the topic rule's ``reading_id``, ``NO_ID`` says that there is none."""
    time: str | None = None
    """Path of the reading's time; None leaves it to the topic rule's ``reading_time``."""
    unit: str | None = None
    sent: str | None = None
    """Path of the time of publishing, µs since the epoch."""


def load_decoders(path: Path) -> tuple[Decoder, ...]:
    """Read the decoders of a rules file. Raises ConfigError naming the file and what is wrong."""
    try:
        body = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as e:
        raise ConfigError(f"rules file {path}: {e}", remedy="see conf/rules.yaml for an example") from e
    entries = body.get("readings") if isinstance(body, dict) else None
    if not isinstance(entries, list) or not entries:
        raise ConfigError(
            f"rules file {path} has no list `readings`", remedy="see conf/rules.yaml for an example"
        )
    return parse_decoders(entries, str(path))


def parse_decoders(entries: Sequence[Any], where: str) -> tuple[Decoder, ...]:
    """Check decoders as they stand in a file. Raises ConfigError listing all problems."""
    known = {f.name for f in fields(Decoder)}
    problems = []
    found = []
    for n, entry in enumerate(entries):
        at = f"readings[{n}]"
        if not isinstance(entry, Mapping):
            problems.append(f"{at} is not a mapping")
            continue
        unknown = sorted(set(entry) - known)
        problems += [f"{at}.{name} is unknown" for name in unknown]
        missing = [name for name in ("filter", "metric", "value") if not entry.get(name)]
        problems += [f"{at}.{name} is missing" for name in missing]
        for name in ("id", "time", "value", "sent"):
            path = entry.get(name)
            if path is not None and not str(path).startswith("$") and (name, path) != ("id", NO_ID):
                problems.append(f"{at}.{name}: {path!r} is no JSON path, give $.{path}")
        if not unknown and not missing:
            values: dict[str, Any] = {k: v if v is None else str(v) for k, v in entry.items()}
            found.append(Decoder(**values))
    if problems:
        raise ConfigError(f"{where}: " + "; ".join(problems), remedy="see conf/rules.yaml for an example")
    return tuple(found)


def check_rules(decoders: Sequence[Decoder], rules: Sequence[RuleFields], where: str) -> None:
    """Raise ConfigError for a decoder that leaves its id or time to topic rules of which none says anything of it."""
    problems = []
    for n, decoder in enumerate(decoders):
        parts: tuple[Part, ...] = ("id", "time")
        for part in parts:
            if getattr(decoder, part) is not None:
                continue
            try:
                said = rule_says(rules, part, decoder.filter)
            except ValueError as e:
                raise ConfigError(f"{where}: readings[{n}]: {e}", remedy="correct the filter") from e
            if not said:
                problems.append(
                    f"readings[{n}].{part} is missing, and no topic rule has a reading_{part} for it"
                )
    if problems:
        raise ConfigError(
            f"{where}: " + "; ".join(problems), remedy="see conf/rules.yaml for an example, or ingest.rules"
        )


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


def decode(rows: DataFrame, decoders: Sequence[Decoder], rules: Sequence[RuleFields] = ()) -> DataFrame:
    """Add silver's columns to bronze rows, ``decoding_failures`` with the names of the rules not met, and ``no_id``:
    whether the reading has no id but its place.

    The first decoder that matches a row's MQTT topic decodes it. A field that is absent or of another type is null.
    ``rules`` say where the id and the time are that a decoder names no path for.
    """
    from pyspark.sql import functions as F

    json = F.expr("try_parse_json(try_validate_utf8(CAST(payload AS STRING)))")
    rows = rows.withColumn("json", json).withColumn("decoder", _first_match(decoders))

    def by_decoder(column: Any) -> Column:
        found = F.lit(None)
        for n, decoder in reversed(list(enumerate(decoders))):
            found = F.when(F.col("decoder") == n, column(decoder)).otherwise(found)
        return found

    def text(path: str) -> Column:
        return F.try_variant_get("json", path, "string")

    def told(part: Part, path: str | None) -> Column:
        return by_rule(rules, part) if path is None else text(path)

    def reading_id(decoder: Decoder) -> Column:
        if decoder.id == NO_ID:
            return F.concat_ws(":", "ledger_id", "entry_id", "batch_index")
        return told("id", decoder.id)

    event_time = by_decoder(lambda d: F.try_to_timestamp(told("time", d.time)))
    sent = by_decoder(lambda d: F.try_variant_get("json", d.sent, "bigint") if d.sent else F.lit(None))
    unknown = F.when(F.col("decoder").isNull(), F.lit(UNKNOWN_TOPIC))
    undecodable = F.when(F.col("json").isNull(), F.lit(UNDECODABLE))
    return (
        rows.withColumn("reading_id", by_decoder(reading_id).cast("string"))
        .withColumn("no_id", by_decoder(lambda d: F.lit(d.id == NO_ID)).eqNullSafe(True))
        .withColumn("metric", by_decoder(lambda d: F.lit(d.metric)).cast("string"))
        .withColumn(
            "value", by_decoder(lambda d: F.try_variant_get("json", d.value, "double")).cast("double")
        )
        .withColumn("unit", by_decoder(lambda d: F.lit(d.unit)).cast("string"))
        .withColumn("event_time", event_time.cast("timestamp"))
        .withColumn("event_day", F.to_date("event_time"))
        .withColumn("sent_at", F.timestamp_micros(sent.cast("bigint")))
        .withColumn("publish_time", F.col("__publishTime"))
        .withColumn("processed_at", F.current_timestamp())
        .withColumn("decoding_failures", F.array_compact(F.array(unknown, undecodable)))
        .drop("json", "decoder")
    )


def _first_match(decoders: Sequence[Decoder]) -> Column:
    from pyspark.sql import functions as F

    found = F.lit(None).cast("int")
    for n, decoder in reversed(list(enumerate(decoders))):
        found = F.when(F.col("mqtt_topic").rlike(topic_pattern(decoder.filter)), F.lit(n)).otherwise(found)
    return found


def as_recipe(decoders: Sequence[Decoder]) -> list[dict[str, Any]]:
    """Return decoders as plain data, for the recipe of a batch."""
    return [asdict(d) for d in decoders]
