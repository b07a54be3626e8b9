"""Prints docs/reference/source-options.md: all options, and migration tables for users of other connectors.

``python -m sources.option_docs > docs/reference/source-options.md``; a test compares the file with this output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeVar

from sources.option_names import ALIASES, INSTEAD, NO_EFFECT, ONLY, OPTIONS, REFUSED, SAME_AS_CLIENT

__all__ = ["KAFKA", "STREAMNATIVE", "render"]

T = TypeVar("T")

STREAMNATIVE: Final[Mapping[str, str]] = {
    "service.url": "the same",
    "admin.url": "the same; used for planning, so the driver must reach it. Default: the usual port of service.url's host",
    "topic": "the same",
    "topics": "the same",
    "topicsPattern": "the same; tenant and namespace are not patterns. Python's regular expressions, which differ from Java's in rare forms",
    "startingOffsets": "the same, message ids as arrays of bytes included; the batch index is ignored, the whole entry is read. Batch also accepts latest",
    "endingOffsets": "the same; a message id is the last message to read, [ledger, entry] the first not to read",
    "startingTime": "the same, also for streaming; JSON by topic or partition with -1 for earliest and -2 for latest",
    "endingTime": "the same, but nothing published at that time or later is read (there, the first such message is)",
    "failOnDataLoss": "the same; default true (there: documented as true, false in its code)",
    "maxBytesPerTrigger": "the same; shared by backlog instead of in equal parts",
    "predefinedSubscription": "the same; required for streaming, used exclusively, never moved back. A new checkpoint on a used one fails, see reuseSubscription",
    "subscriptionPrefix": "the subscription's name if predefinedSubscription is not given; no random part is added",
    "pollTimeoutMs": "another name of readIdleTimeout: after that time without an entry the rest is looked up, and only missing entries count as lost",
    "waitingForNonExistedTopic": "the same for streaming; meanwhile the query reads the existing topics",
    "allowDifferentTopicSchemas": "accepted; raw bytes are the default here. For typed values set decode=fields",
    "pulsar.client.*": "see below; names compare without case",
    "pulsar.admin.*": "credentials and certificates must equal those of pulsar.client.*, or apply to both; others as there",
    "pulsar.reader.*": "see below",
    "pulsar.producer.*": "accepted, no effect on a source",
}
"""Every option of StreamNative's connector, with its meaning here."""

KAFKA: Final[Mapping[str, str]] = {
    "failOnDataLoss": "the same",
    "minPartitions": "the same; entry ranges are split",
    "minRowsPerTrigger": "replaces minOffsetsPerTrigger",
    "maxTriggerDelay": "the same",
    "startingOffsets": 'earliest, latest, {"topic": {"0": -2, "1": -1}}; positions are [ledger, entry] instead of a number',
    "endingOffsets": "likewise",
}
"""Options of Spark's Kafka source with the same name here."""

_HEAD: Final = """# Options of `format("pulsebridge")`

Printed by `python -m sources.option_docs`. Names compare without case. An unknown option is refused with the nearest known name, and all problems are reported together.

| option | meaning |
|---|---|
"""
_JSON: Final = """
## Offsets and times as JSON

```json
{"persistent://tenant/ns/topic": "earliest",
 "persistent://tenant/ns/topic-partition-3": [812, 5],
 "other-topic": {"0": [812, 0], "1": "latest", "2": -2}}
```

A position is `[ledger, entry]`. A partition's own entry has precedence over its topic's. Unnamed partitions are read whole: from earliest, to latest. `[ledger, entry]` is the first entry to read or, as an end, the first not to read. An offset copied from a checkpoint's log is accepted unchanged. -2 is earliest and -1 latest, as in Spark's Kafka source.
`startingTime` and `endingTime` accept `{"topic": ms}` likewise, with -1 for earliest and -2 for latest, as in StreamNative's connector. By time, a range begins with the first entry published at that time or later, in topic order, and ends before it. So ranges that meet at a time share no entry and omit none (`test_ranges_by_time_begin_at_their_start_and_end_before_their_end`).
A batch query's range is resolved once for each `load()`; use another `load()` to read later messages.

## Values by the topic's schema

`value` has the stored bytes, NULL for a tombstone. With `decode=value` it is decoded by the Pulsar schema. With `decode=fields` the fields of a record become columns, as in StreamNative's connector; a field replaces a column without `__` of the same name. `payload` always has the bytes.
All rows have the type of the newest schema at `load()`. Avro messages of other versions are resolved to it by Avro's rules, and missing JSON fields get their default (`test_an_avro_topic_is_read_under_its_newest_schema_whatever_wrote_it`). AVRO (extra `avro`), JSON, STRING, BOOLEAN, INT8 to INT64, FLOAT, DOUBLE, DATE, TIMESTAMP, INSTANT, LOCAL_DATE and BYTES are decoded. Key-value and Protobuf schemas, unions of several types and recursive records are refused: decode those yourself.
`__key` is the key's text. Java's clients store keys given as bytes in base64: `keyEncoding=base64` gives the bytes. `.schema("__key binary, …")` gives the text's bytes, as in StreamNative's connector.

## From StreamNative's connector

Change the format's name from `pulsar` to `pulsebridge`, install the wheel instead of the jar, and begin with a new checkpoint (`startingTime` sets its start). A test runs such a query: `test_a_query_for_streamnatives_connector_runs_with_the_formats_name_changed`.
Columns have the same names. `__key` is a string (there: binary), and a topic with a schema is raw bytes until `decode=fields`.

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
    yield "\nOptions of `pulsar.client.`, `pulsar.admin.` and `pulsar.reader.` that are not in the table above:\n\n"
    yield "| option | here |\n|---|---|\n"
    for name in SAME_AS_CLIENT:
        yield _row(f"`pulsar.admin.{name}`", f"replaces `pulsar.client.{name}`, or must equal it")
    for name, (value, why) in _merged(ONLY).items():
        yield _row(f"`{name}`", f"only {value}: {why}")
    for name, why in _merged(NO_EFFECT).items():
        if name.startswith("pulsar.") and "*" not in name:
            yield _row(f"`{name}`", f"accepted, no effect: {why}")
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
            yield _row(f"`{name}`", ("refused: " if name in REFUSED else "accepted, no effect: ") + why)


def _merged(table: Mapping[str, T]) -> dict[str, T]:
    """Return the table without the admin's options that equal the client's."""
    return {
        name: why
        for name, why in table.items()
        if not (name.startswith("pulsar.admin.") and name.replace(".admin.", ".client.") in table)
    }


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


if __name__ == "__main__":
    print(render(), end="")  # noqa: T201
