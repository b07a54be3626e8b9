"""Reads all readings, commands and receipts from Pulsar with the bare client.

It does not use Pulsebridge's Spark source. ``dump`` stores the rows in a file, for an audit after the servers are
stopped.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bridge.contract import (
    C_DEVICE,
    C_ID,
    COMMANDS_TOPIC,
    P_DEVICE,
    RECEIPTS_TOPIC,
    Receipt,
    full_envelope,
    partition_name,
)
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import PulsarClient
from bridge.pulsar.topic_end import read_partition
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.audit.records import Emitted, Position, ReceiptRow, Stored, json_object, record_id

__all__ = ["Row", "dump", "read_dump", "read_live", "row_of"]

Row = Stored | Emitted | ReceiptRow
_ROWS: Final = {cls.__name__: cls for cls in (Stored, Emitted, ReceiptRow)}


def read_live(settings: PulsarSettings) -> Iterator[Row]:
    """Yield every message of the readings, commands and receipts topics as a row.

    Raises TransientError if Pulsar cannot be reached.
    """
    with PulsarAdmin(settings) as admin, PulsarClient(settings) as client:
        topics: dict[str, type[Row]] = {
            **dict.fromkeys(admin.topics(f"{settings.tenant}/{settings.namespace}"), Stored),
            settings.system_topic(COMMANDS_TOPIC): Emitted,
            settings.system_topic(RECEIPTS_TOPIC): ReceiptRow,
        }
        for topic, kind in topics.items():
            count = admin.partition_count(topic)
            for number in range(max(1, count)):
                partition = partition_name(topic, number) if count else topic
                yield from _read(client, kind, topic, number, partition)


def _read(client: PulsarClient, kind: type[Row], topic: str, number: int, partition: str) -> Iterator[Row]:
    for message in read_partition(client, partition):
        at = message.message_id()
        position = Position(topic, number, at.ledger_id(), at.entry_id(), max(0, at.batch_index()))
        us = message.publish_timestamp() * 1000
        yield row_of(kind, position, message.partition_key(), message.properties(), message.data(), us)


def row_of(
    kind: type[Row], position: Position, key: str, properties: Mapping[str, str], payload: bytes, us: int
) -> Row:
    """Return the row of one message that was published at ``us``, µs since the epoch."""
    if kind is Stored:
        return Stored(record_id(payload), full_envelope(properties).get(P_DEVICE) or key, position, us)
    if kind is Emitted:
        body, name = json_object(payload), properties.get(C_ID) or record_id(payload)
        cause = (str(body.get("reading_id", "")), str(body.get("rule", "")))
        return Emitted(name, properties.get(C_DEVICE) or key, *cause, position, us)
    receipt = Receipt.decode(payload)
    return ReceiptRow(receipt.command_id, receipt.device, receipt.state, receipt.confirmed_at_us)


def dump(rows: Iterable[Row], path: Path) -> None:
    """Write rows into a gzip file, completely or not at all."""
    partial = path.with_name(f".{path.name}")
    with gzip.open(partial, "wt", encoding="utf-8", compresslevel=1) as out:
        for row in rows:
            out.write(json.dumps({"row": type(row).__name__} | row._asdict(), separators=(",", ":")) + "\n")
    partial.replace(path)


def read_dump(path: Path) -> Iterator[Row]:
    """Yield the rows of a dump."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            fields: dict[str, Any] = json.loads(line)
            if "position" in fields:
                fields["position"] = Position(*fields["position"])
            yield _ROWS[fields.pop("row")](**fields)
