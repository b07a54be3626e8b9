"""Runs a live audit: reads Pulsar, then the tables, and compares them bucket by bucket."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from bridge.contract import partition_name
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import PulsarClient
from bridge.routing.readings_topics import topics_to_read
from bridge.routing.templates import Filter
from bridge.settings.presets import declared_decoders, declared_tables
from bridge.settings.tables import Decoding
from pulsebridge.audit.live import command_log
from pulsebridge.audit.live.buckets import COUNT, SCHEMA, Buckets
from pulsebridge.audit.live.commands import Row
from pulsebridge.audit.live.findings import Finding, Hop, Kind, Report, when
from pulsebridge.audit.live.joins import Lacking, Span, TableSide, compare_bronze, compare_table
from pulsebridge.audit.live.log import NumberFields, read_partition_window
from pulsebridge.audit.live.sequence import Sequences
from pulsebridge.audit.live.tables import Partitions, Tables, rows_of

if TYPE_CHECKING:
    from bridge.settings import Settings

__all__ = ["audit", "table_sides"]

_LOG: Final = "Pulsar"
_BRONZE: Final = "bronze"
_HOUR_US: Final = 3_600_000_000
_QUARANTINE: Final = "quarantine"
_MOST_LACKING: Final = 100_000
"""Messages of a keyed table whose repeats are looked up; more of them would need more memory."""
_POSITION: Final = ("_position", "device", "arrival_time")
_ROWS: Final = {
    _BRONZE: (
        "__topic",
        "partition",
        "ledger_id",
        "entry_id",
        "batch_index",
        "device",
        "arrival_time",
        "stored_at",
        "payload",
    ),
    _QUARANTINE: (*_POSITION, "table"),
}


def table_sides(settings: Settings) -> list[TableSide]:
    """Return the tables that the settings declare, and which messages each must have."""
    tables = [(one.name, one.decoding, one.keys) for one in declared_tables(settings)]
    if "readings" in settings.streaming.built_in:
        tables.append(("readings", declared_decoders(settings), ("_id",)))
    named = any(rule.reading_id for rule in settings.ingest.all_routes)
    # Without an id of the device, _id is the position, so no message has the keys of another.
    return [
        TableSide(name, _due(of), bool(keys) and ("_id" not in keys or named or any(one.id for one in of)))
        for name, of, keys in tables
    ]


def _due(decodings: Sequence[Decoding]) -> Callable[[str], bool]:
    """Whether each message of a topic has rows. A condition or a function may leave some out."""
    cases = [(Filter.parse(one.filter), one.format not in ("none", "python") and one.where is None and one.elements is None)
             for one in decodings]  # fmt: skip

    def due(topic: str) -> bool:
        levels = topic.split("/")
        return bool(topic) and next((takes for of, takes in cases if of.match(levels) is not None), False)

    return due


def audit(
    settings: Settings, tables: Tables, since_us: int, until_us: int, *, strict: bool = False, most: int = 1000
) -> Report:
    """Return the report on the messages that were published from ``since_us`` to before ``until_us``.

    ``strict``: copies that at-least-once delivery allows are findings. Raises TransientError and RefusedError if Pulsar
    cannot be read.
    """
    report = Report(since_us, until_us, most)
    with (
        PulsarAdmin(settings.pulsar) as admin,
        PulsarClient(settings.pulsar) as client,
        tempfile.TemporaryDirectory(prefix="pulsebridge-audit-") as folder,
    ):
        fields = NumberFields(settings.ingest.all_routes)
        letters, explained = command_log.read_letters(client, since_us, fields)
        buckets = Buckets(Path(folder))
        span, partitions = _read_log(settings, admin, client, buckets, explained, fields, report)
        commands = command_log.read_commands(client, since_us, until_us, letters)
        sides = _read_tables(settings, tables, buckets, partitions, span, report)
        commands.alert_rows = _alert_rows(tables, since_us)
        buckets.close()
        for finding in commands.findings(command_log.waits(client, admin), report.copy):
            report.add(finding)
        _compare(buckets, span, sides, report)
    report.read |= buckets.rows | {"commands": len(commands.emitted), "receipts": len(commands.receipts)}
    if strict:
        for hop, count in report.copies.items():
            if count:
                report.add(Finding(hop, Kind.REPEATED, "", since_us, f"{count} copies", "at-least-once"))
    return report


def _read_log(
    settings: Settings, admin: PulsarAdmin, client: PulsarClient, buckets: Buckets, explained: Set[tuple[str, str, int]],
    fields: NumberFields, report: Report,
) -> tuple[Span, Partitions]:  # fmt: skip
    names = []
    for topic in topics_to_read(settings, admin.topics):
        count = admin.partition_count(topic)
        names += [partition_name(topic, n) for n in range(count)] if count else [topic]
    ranges: dict[int, tuple[tuple[int, int], tuple[int, int]]] = {}
    for number, partition in enumerate(names):
        if not admin.exists(partition):
            continue
        numbers = Sequences(explained)
        for rows in read_partition_window(client, partition, number, report.since_us, report.until_us, fields, numbers):
            buckets.write(_LOG, rows)
            ledgers, entries = rows.column("ledger"), rows.column("entry")
            first, last = ((ledgers[n].as_py(), entries[n].as_py()) for n in (0, rows.num_rows - 1))
            ranges[number] = ranges.get(number, (first, last))[0], last
        for finding in numbers.end():
            report.add(finding)
        report.copy(Hop.DEVICE, numbers.copies)
    return Span(report.since_us, report.until_us, dict(enumerate(names)), ranges), Partitions(names)


def _read_tables(
    settings: Settings, tables: Tables, buckets: Buckets, partitions: Partitions, span: Span, report: Report
) -> list[TableSide]:
    sides = table_sides(settings)
    wanted = {**_ROWS, **{side.name: _POSITION for side in sides}}
    lacking = set()
    # Pulsar's ledgers grow over all topics of a cluster, so older rows are not of the window.
    oldest = min((first[0] for first, _ in span.ranges.values()), default=0)
    for name, columns in wanted.items():
        ledger = "ledger_id" if name == _BRONZE else "_position.ledger"
        batches = tables.batches(name, columns, f"{ledger} >= {oldest}")
        if batches is None:
            lacking.add(name)
            if name != _QUARANTINE:
                report.unseen.append(f"the table {name} does not exist")
            continue
        buckets.rows[name] = 0
        for found in batches:
            found = pa.record_batch(found)  # arro3 of deltalake and pyarrow's own
            buckets.write(name, rows_of(found, partitions, "table" if name == _QUARANTINE else ""))
    if _BRONZE in lacking and _BRONZE in settings.streaming.built_in:
        report.add(Finding(Hop.BRONZE, Kind.MISSING, "", report.since_us, "all", "the table does not exist"))
    return [side for side in sides if side.name not in lacking]


def _alert_rows(tables: Tables, since_us: int) -> list[Row] | None:
    """Return the alerts of micro-batches that began in the window, or up to an hour before it."""
    batches = tables.batches(
        "alerts", ("command_id", "to_device", "created_at"), f"created_at >= '{when(since_us - _HOUR_US)}'"
    )
    if batches is None:
        return None
    rows = [row for found in batches for row in pa.record_batch(found).to_pylist()]
    return [Row(r["command_id"] or "", r["to_device"] or "", int(r["created_at"].timestamp() * 1e6)) for r in rows]


def _compare(buckets: Buckets, span: Span, sides: Sequence[TableSide], report: Report) -> None:
    lacking: dict[str, list[Lacking]] = {}
    for bucket in range(COUNT):
        log, quarantine = buckets.read(_LOG, bucket), buckets.read(_QUARANTINE, bucket)
        if _BRONZE in buckets.rows:
            for finding in compare_bronze(log, buckets.read(_BRONZE, bucket), span):
                report.add(finding)
        for side in sides:
            bad = quarantine.filter(pc.equal(quarantine.column("topic"), side.name))
            for found in compare_table(side, log, buckets.read(side.name, bucket), bad, span):
                some = lacking.setdefault(side.name, [])
                if not isinstance(found, Lacking):
                    report.add(found)
                elif len(some) < _MOST_LACKING:
                    some.append(found)
                else:
                    report.add(found.finding)
    for name, some in lacking.items():
        equal = _with_rows(buckets, name, {one.content for one in some})
        for one in some:
            if one.content not in equal:
                report.add(one.finding)


def _with_rows(buckets: Buckets, name: str, wanted: Set[tuple[str, int]]) -> set[tuple[str, int]]:
    """Return which of these contents, as device and checksum, a message with a row has."""
    found = set()
    crcs = pa.array(sorted({crc for _, crc in wanted}), pa.int64())
    for bucket in range(COUNT):
        log = buckets.read(_LOG, bucket)
        some = log.filter(pc.is_in(log.column("crc"), value_set=crcs))
        if some.num_rows:
            rows = {tuple(r.values()) for r in buckets.read(name, bucket).select(SCHEMA.names[:4]).to_pylist()}
            for r in some.to_pylist():
                if (r["part"], r["ledger"], r["entry"], r["index"]) in rows:
                    found.add((r["device"], r["crc"]))
    return found & wanted
