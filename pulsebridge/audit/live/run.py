"""Runs a live audit: reads Pulsar, then the tables, and compares them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from bridge.contract import partition_name
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import PulsarClient
from bridge.routing.readings_topics import topics_to_read
from bridge.routing.templates import Filter
from bridge.settings.presets import declared_decoders, declared_tables
from bridge.settings.tables import Decoding
from pulsebridge.audit.live import command_log
from pulsebridge.audit.live.commands import Row
from pulsebridge.audit.live.findings import Finding, Hop, Kind, Report, when
from pulsebridge.audit.live.joins import BRONZE, QUARANTINE, Lacking, Span, TableSide
from pulsebridge.audit.live.log import LogReader, NumberFields
from pulsebridge.audit.live.on_disk import Store
from pulsebridge.audit.live.tables import Partitions, Ranges

if TYPE_CHECKING:
    from bridge.settings import Settings

__all__ = ["DueTables", "audit", "table_sides"]

_HOUR_US: Final = 3_600_000_000
_MOST_LACKING: Final = 100_000
"""Messages of a keyed table whose repeats are looked up; more of them would need more memory."""
_MOST_TOPICS: Final = 100_000
_MOST_LEDGER: Final = (1 << 63) - 1
_POSITION: Final = ("_position", "device", "arrival_time")
_ROWS: Final = {
    BRONZE: (
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
    QUARANTINE: (*_POSITION, "table"),
}


def table_sides(settings: Settings) -> list[TableSide]:
    """Return the tables that the settings declare."""
    named = any(rule.reading_id for rule in settings.ingest.all_routes)
    # Without an id of the device, _id is the position, so no message has the keys of another.
    return [
        TableSide(name, bit, bool(keys) and ("_id" not in keys or named or any(one.id for one in of)))
        for bit, (name, of, keys) in enumerate(_tables(settings))
    ]


def _tables(settings: Settings) -> list[tuple[str, Sequence[Decoding], Sequence[str]]]:
    tables: list[tuple[str, Sequence[Decoding], Sequence[str]]] = [
        (one.name, one.decoding, one.keys) for one in declared_tables(settings)
    ]
    if "readings" in settings.streaming.built_in:
        tables.append(("readings", declared_decoders(settings), ("_id",)))
    return tables


class DueTables(dict[str, bytes]):
    """By MQTT topic, as bits of ``TableSide``, the lowest byte first, which tables must have a row of each message. Others may leave some out."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._tables = [
            [
                (
                    Filter.parse(one.filter),
                    one.format not in ("none", "python") and one.where is None and one.elements is None,
                )
                for one in of
            ]
            for _, of, _ in _tables(settings)
        ]

    def __missing__(self, topic: str) -> bytes:
        levels, found = topic.split("/"), 0
        for bit, cases in enumerate(self._tables if topic else ()):
            found |= next((takes for of, takes in cases if of.match(levels) is not None), False) << bit
        if len(self) >= _MOST_TOPICS:
            self.clear()
        due = self[topic] = found.to_bytes(-(-found.bit_length() // 8), "little")
        return due


def audit(
    settings: Settings, store: Store, since_us: int, until_us: int, *, strict: bool = False, most: int = 1000
) -> Report:
    """Return the report on the messages that were published from ``since_us`` to before ``until_us``.

    ``strict``: copies that at-least-once delivery allows are findings. Raises TransientError and RefusedError if Pulsar
    or a table cannot be read.
    """
    report = Report(since_us, until_us, most)
    with PulsarAdmin(settings.pulsar) as admin, PulsarClient(settings.pulsar) as client:
        fields = NumberFields(settings.ingest.all_routes)
        letters, explained = command_log.read_letters(client, since_us, fields)
        names = _partitions(settings, admin)
        reader = LogReader(settings.pulsar, fields, frozenset(explained), DueTables(settings), since_us, until_us)
        log = store.read_log(reader, client, names)
        for finding in log.found:
            report.add(finding)
        report.copy(Hop.DEVICE, log.copies)
        commands = command_log.read_commands(client, since_us, until_us, letters)
        span = Span(since_us, until_us, dict(enumerate(names)))
        sides = _read_tables(settings, store, names, log.ranges, report)
        commands.alert_rows = _alert_rows(store, since_us)
        for finding in commands.findings(command_log.waits(client, admin), report.copy):
            report.add(finding)
    _compare(store, sides, span, report)
    report.read |= store.counts | {"commands": len(commands.emitted), "receipts": len(commands.receipts)}
    if strict:
        for hop, count in report.copies.items():
            if count:
                report.add(Finding(hop, Kind.REPEATED, "", since_us, f"{count} copies", "at-least-once"))
    return report


def _partitions(settings: Settings, admin: PulsarAdmin) -> list[str]:
    names = []
    for topic in topics_to_read(settings, admin.topics):
        count = admin.partition_count(topic)
        names += [partition_name(topic, n) for n in range(count)] if count else [topic]
    return [name for name in names if admin.exists(name)]


def _read_tables(
    settings: Settings, store: Store, names: Sequence[str], ranges: Ranges, report: Report
) -> list[TableSide]:
    sides, partitions = table_sides(settings), Partitions(names, ranges)
    wanted = {**_ROWS, **{side.name: _POSITION for side in sides}}
    lacking = set()
    # Pulsar's ledgers grow over all topics of a cluster, so rows of others are not of the window.
    oldest = min((first[0] for first, _ in ranges.values()), default=_MOST_LEDGER)
    newest = max((last[0] for _, last in ranges.values()), default=-1)
    for name, columns in wanted.items():
        where = f"{'ledger_id' if name == BRONZE else '_position.ledger'} BETWEEN {oldest} AND {newest}"
        if not store.read_table(name, columns, where, partitions, "table" if name == QUARANTINE else ""):
            lacking.add(name)
            if name != QUARANTINE:
                report.unseen.append(f"the table {name} does not exist")
    if BRONZE in lacking and BRONZE in settings.streaming.built_in:
        report.add(Finding(Hop.BRONZE, Kind.MISSING, "", report.since_us, "all", "the table does not exist"))
    return [side for side in sides if side.name not in lacking]


def _alert_rows(store: Store, since_us: int) -> list[Row] | None:
    """Return the alerts of micro-batches that began in the window, or up to an hour before it."""
    where = f"created_at >= '{when(since_us - _HOUR_US)}'"
    batches = store.batches("alerts", ("command_id", "to_device", "created_at"), where)
    if batches is None:
        return None
    rows = [row for found in batches for row in found.to_pylist()]
    return [Row(r["command_id"] or "", r["to_device"] or "", int(r["created_at"].timestamp() * 1e6)) for r in rows]


def _compare(store: Store, sides: Sequence[TableSide], span: Span, report: Report) -> None:
    lacking: dict[str, list[Lacking]] = {}
    for table, found in store.compare(sides, span):
        some = lacking.setdefault(table, [])
        if not isinstance(found, Lacking):
            report.add(found)
        elif len(some) < _MOST_LACKING:
            some.append(found)
        else:
            report.add(found.finding)
    for table, some in lacking.items():
        equal = store.with_rows(table, {one.content for one in some}) if some else set()
        for one in some:
            if one.content not in equal:
                report.add(one.finding)
