"""Prints sources/OPTIONS.md: all options, and the migration tables for those who come from another connector.

``python -m sources.option_docs > sources/OPTIONS.md``; a test holds the file true.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeVar

from sources.option_names import ALIASES, INSTEAD, NO_EFFECT, ONLY, OPTIONS, REFUSED, SAME_AS_CLIENT

__all__ = ["KAFKA", "STREAMNATIVE", "render"]

T = TypeVar("T")

STREAMNATIVE: Final[Mapping[str, str]] = {
    "service.url": "the same",
    "admin.url": "the same; used for planning, so it must be reachable from the driver. Default: the usual port of service.url's host",
    "topic": "the same",
    "topics": "the same",
    "topicsPattern": "the same; tenant and namespace are no pattern. Python's regular expressions, which differ from Java's in rare forms",
    "startingOffsets": "the same, message ids as arrays of bytes included; the index in a batch is left out, the entry is read whole. Batch takes latest too",
    "endingOffsets": "the same; a message id is the last message read, [ledger, entry] the first that is not",
    "startingTime": "the same, also for streaming; JSON by topic or partition with -1 for earliest and -2 for latest",
    "endingTime": "the same, but nothing published at that time or later is read (there, the first such message is)",
    "failOnDataLoss": "the same; default true (there: documented as true, false in its code)",
    "maxBytesPerTrigger": "the same; shared by backlog instead of in equal parts",
    "predefinedSubscription": "the same; required for streaming, used exclusively, never moved back. A new checkpoint on a used one fails, see reuseSubscription",
    "subscriptionPrefix": "the subscription's name where predefinedSubscription is not given; nothing random is added",
    "pollTimeoutMs": "another name of readIdleTimeout: after that time without an entry the rest is looked up, and only what is gone counts as lost",
    "waitingForNonExistedTopic": "the same for streaming; the query runs meanwhile on the topics that are there",
    "allowDifferentTopicSchemas": "accepted; raw bytes are the default here. For typed values set decode=fields",
    "pulsar.client.*": "see below; names compare without case",
    "pulsar.admin.*": "credentials and certificates must be those of pulsar.client.*, or stand for both; the rest as there",
    "pulsar.reader.*": "see below",
    "pulsar.producer.*": "accepted, changes nothing for a source",
}
"""Every option of StreamNative's connector, and what it is here."""

KAFKA: Final[Mapping[str, str]] = {
    "failOnDataLoss": "the same",
    "minPartitions": "the same; entry ranges are split",
    "minRowsPerTrigger": "stands for minOffsetsPerTrigger",
    "maxTriggerDelay": "the same",
    "startingOffsets": 'earliest, latest, {"topic": {"0": -2, "1": -1}}; positions are [ledger, entry] instead of a number',
    "endingOffsets": "likewise",
}
"""Options of Spark's Kafka source that have their name here too."""

_HEAD: Final = """# Options of `format("pulsebridge")`

Printed by `python -m sources.option_docs`. Names compare without case. An unknown option is refused with the nearest known name, and all problems are told at once.

| option | meaning |
|---|---|
"""
_JSON: Final = """
## Offsets and times as JSON

```json
{"persistent://tenant/ns/topic": "earliest",
 "persistent://tenant/ns/topic-partition-3": [ledger, entry],
 "other-topic": {"0": [ledger, entry], "1": "latest", "2": -2}}
```

A partition's own place counts before its topic's. What is not named is read whole: from earliest, to latest. `[ledger, entry]` is the first entry that is read, or, as an end, the first that is not; an offset copied from a checkpoint's log can be given as it is. -2 is earliest and -1 latest, as Spark's Kafka source has it.
`startingTime` and `endingTime` take `{"topic": ms}` likewise, with -1 for earliest and -2 for latest, as StreamNative's connector has it. By time, a range begins with the first entry published at that time or later, and ends before it, as Pulsar finds it in the order of the topic: ranges that meet in a time share no entry and leave none out (`test_ranges_by_time_begin_at_their_start_and_end_before_their_end`).
A batch query's range is resolved once for each `load()`; use another `load()` to see what came later.

## Values by the topic's schema

`value` holds the bytes as they were stored, NULL for a tombstone. With `decode=value` it is decoded by the Pulsar schema, with `decode=fields` the fields of a record become columns, as StreamNative's connector gives them; a field has its name before one of our columns without `__`. `payload` always has the bytes.
All rows have the type of the newest schema at `load()`: Avro messages of other versions are resolved to it by Avro's rules, JSON fields that are missing get their default (`test_an_avro_topic_is_read_under_its_newest_schema_whatever_wrote_it`). AVRO (extra `avro`), JSON, STRING, BOOLEAN, INT8 to INT64, FLOAT, DOUBLE, DATE, TIMESTAMP, INSTANT, LOCAL_DATE and BYTES are decoded; key-value and Protobuf schemas, unions of several types and records that contain themselves are refused: decode those yourself.
`__key` is the key's text. Java's clients store keys that were given as bytes as base64 of them: `keyEncoding=base64` gives the bytes. `.schema("__key binary, …")` gives the text's bytes, as StreamNative's connector does.

## From StreamNative's connector

Change the format's name from `pulsar` to `pulsebridge`, install the wheel instead of the jar, and begin with a new checkpoint (`startingTime` says from when). A test runs such a query: `test_a_query_for_streamnatives_connector_runs_with_the_formats_name_changed`.
Columns have their names; `__key` is a string (there: binary), and a topic with a schema is raw bytes until `decode=fields`.

| option there | here |
|---|---|
"""


def render() -> str:
    """Return the whole page."""
    return "".join(_lines())


def _lines() -> Iterator[str]:
    yield _HEAD
    for name, meaning in OPTIONS.items():
        also = [other for other, known in ALIASES.items() if known == name]
        more = f" Also as `{'`, `'.join(also)}`." if also else ""
        yield _row(f"`{name}`", meaning + more)
    yield _JSON
    for name, here in STREAMNATIVE.items():
        yield _row(f"`{name}`", here)
    yield "\nOf `pulsar.client.`, `pulsar.admin.` and `pulsar.reader.`, what is not in the table above:\n\n"
    yield "| option | here |\n|---|---|\n"
    for name in SAME_AS_CLIENT:
        yield _row(f"`pulsar.admin.{name}`", f"stands for `pulsar.client.{name}`, or must agree with it")
    for name, (value, why) in _merged(ONLY).items():
        yield _row(f"`{name}`", f"only {value}: {why}")
    for name, why in _merged(NO_EFFECT).items():
        if name.startswith("pulsar.") and "*" not in name:
            yield _row(f"`{name}`", f"accepted, changes nothing: {why}")
    for name, why in _merged(REFUSED).items():
        if name.startswith("pulsar."):
            yield _row(f"`{name}`", f"refused: {why}")
    yield "\n## From Spark's Kafka source\n\n| option there | here |\n|---|---|\n"
    for name, here in KAFKA.items():
        yield _row(f"`{name}`", here)
    for name, known in INSTEAD.items():
        yield _row(f"`{name}`", f"refused: give `{known}`")
    yield _row("`kafka.*`", "refused: the connection is described by service.url, admin.url and pulsar.client.…")
    for name, why in {**NO_EFFECT, **REFUSED}.items():
        if not name.startswith("pulsar."):
            yield _row(f"`{name}`", ("refused: " if name in REFUSED else "accepted, changes nothing: ") + why)


def _merged(table: Mapping[str, T]) -> dict[str, T]:
    """Return the table with the admin's options left out where they say what the client's say."""
    return {
        name: why
        for name, why in table.items()
        if not (name.startswith("pulsar.admin.") and name.replace(".admin.", ".client.") in table)
    }


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


if __name__ == "__main__":
    print(render(), end="")  # noqa: T201
