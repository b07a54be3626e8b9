"""The audit's second record: what Pulsar holds, read by the bare client from the first message to the last.

Pulsebridge's own Spark source has no part in it. The messages can be dumped into a file of the run, so that the
audit can be made again after the servers are gone; a dump and a live read give the same lines.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

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
from bridge.pulsar_admin import PulsarAdmin
from bridge.pulsar_client import Message, MessageId, PulsarClient
from bridge.settings.pulsar import PulsarSettings
from bridge.topic_end import read_to_end
from pulsebridge.audit.records import Emitted, Place, ReceiptRow, Stored
from pulsebridge.demo.payloads import decode, record_id

__all__ = ["DUMP_FILE", "PulsarRecord", "as_record", "dump", "read_dump", "read_live"]

DUMP_FILE = "pulsar.jsonl.gz"


class PulsarRecord(NamedTuple):
    """The messages of the three seams."""

    stored: tuple[Stored, ...]
    emitted: tuple[Emitted, ...]
    receipts: tuple[ReceiptRow, ...]


def read_live(settings: PulsarSettings) -> Iterator[dict[str, Any]]:
    """Yield every message of the readings, commands and receipts topics as a plain line.

    Raises TransientError when Pulsar cannot be reached.
    """
    with PulsarAdmin(settings) as admin, PulsarClient(settings) as client:
        seams = [("reading", topic) for topic in admin.topics(f"{settings.tenant}/{settings.namespace}")]
        seams += [
            ("command", settings.system_topic(COMMANDS_TOPIC)),
            ("receipt", settings.system_topic(RECEIPTS_TOPIC)),
        ]
        for seam, topic in seams:
            count = admin.partition_count(topic)
            for number in range(max(1, count)):
                yield from _read(
                    client, seam, topic, number, partition_name(topic, number) if count else topic
                )


def _read(
    client: PulsarClient, seam: str, topic: str, number: int, partition: str
) -> Iterator[dict[str, Any]]:
    reader = client.reader(partition, MessageId.earliest)
    try:
        for message in read_to_end(reader, client.settings, partition):
            yield _line(seam, topic, number, message)
    finally:
        reader.close()


def _line(seam: str, topic: str, number: int, message: Message) -> dict[str, Any]:
    at = message.message_id()
    return {
        "seam": seam,
        "topic": topic,
        "partition": number,
        "ledger": at.ledger_id(),
        "entry": at.entry_id(),
        "index": max(0, at.batch_index()),
        "key": message.partition_key(),
        "publish_ms": message.publish_timestamp(),
        "event_ms": message.event_timestamp(),
        "properties": dict(message.properties()),
        "payload": base64.b64encode(message.data()).decode("ascii"),
    }


def dump(lines: Iterable[dict[str, Any]], path: Path) -> int:
    """Write the lines into a gzip file, whole or not at all. Returns how many there are."""
    partial = path.with_name(f".{path.name}")
    count = 0
    with gzip.open(partial, "wt", encoding="utf-8", compresslevel=1) as out:
        for line in lines:
            out.write(json.dumps(line, separators=(",", ":")) + "\n")
            count += 1
    partial.replace(path)
    return count


def read_dump(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a dump."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def as_record(lines: Iterable[dict[str, Any]]) -> PulsarRecord:
    """Return the lines as the audit joins them."""
    stored: list[Stored] = []
    emitted: list[Emitted] = []
    receipts: list[ReceiptRow] = []
    for line in lines:
        place = Place(line["topic"], line["partition"], line["ledger"], line["entry"], line["index"])
        payload = base64.b64decode(line["payload"])
        properties, publish_us = line["properties"], int(line["publish_ms"]) * 1000
        if line["seam"] == "reading":
            device = full_envelope(properties).get(P_DEVICE) or line["key"]
            arrival_us = int(line["event_ms"]) * 1000
            stored.append(Stored(record_id(payload), device, place, arrival_us, publish_us))
        elif line["seam"] == "command":
            body = decode(payload) or {}
            device = properties.get(C_DEVICE) or line["key"]
            name = properties.get(C_ID) or record_id(payload)
            reading, rule = str(body.get("reading_id", "")), str(body.get("rule", ""))
            emitted.append(Emitted(name, device, reading, rule, place, publish_us))
        else:
            r = Receipt.decode(payload)
            receipts.append(ReceiptRow(r.command_id, r.device, r.state, place, r.confirmed_at_us))
    return PulsarRecord(tuple(stored), tuple(emitted), tuple(receipts))
