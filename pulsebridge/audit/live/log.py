"""Reads the messages of the readings topics with Pulsar's client, without Pulsebridge's Spark source."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from bridge.contract import P_DEVICE, P_INGEST, P_REPLAYED, P_RETAINED, P_RULE, P_TOPIC, P_USER, full_envelope
from bridge.contract.commands import BEFORE_ALL
from bridge.errors import ContractError
from bridge.pulsar.client import (
    EARLIEST,
    Message,
    PulsarClient,
    key_of,
    message_id,
    our_errors,
    properties_of,
    received,
)
from bridge.pulsar.messages import position_of
from bridge.pulsar.sending import close_quietly
from bridge.pulsar.topic_end import ledgers_of, read_to_end
from bridge.routing.message_fields import MessageField, MissingField, read_fields
from bridge.routing.templates import Filter, Template
from bridge.settings.rules import TopicRule
from pulsebridge.audit.live.buckets import SCHEMA
from pulsebridge.audit.live.sequence import Sequences

if TYPE_CHECKING:
    from bridge.settings import PulsarSettings

__all__ = ["LogReader", "NumberFields", "has_value", "window"]

_BATCH: Final = 20_000
_QUEUE: Final = 5000
_SILENT_MS: Final = 200
_LAST_MS: Final = 5000
_NO_VALUE: Final = re.compile(rb"null|\{\}|\[\]").search


@lru_cache(maxsize=10_000)
def _ingest(folded: str) -> tuple[str, str]:
    """Return device and rule of the property ``P_INGEST``, which is the same for all messages of an MQTT topic."""
    try:
        full = full_envelope({P_INGEST: folded})
    except ContractError:
        return "", ""
    return full.get(P_DEVICE) or "", full.get(P_RULE) or ""


def has_value(payload: bytes) -> bool:
    """Return whether a payload has a value other than null. Without one no row of a table is due."""
    if len(payload) > 2 and _NO_VALUE(payload) is None:
        return True
    try:
        found = [json.loads(payload)]
    except (ValueError, RecursionError):
        return bool(payload.strip())
    while found:
        one = found.pop()
        if isinstance(one, dict | list):
            found += one.values() if isinstance(one, dict) else one
        elif one is not None:
            return True
    return False


class NumberFields:
    """The fields with the device's own number, by route."""

    def __init__(self, routes: Sequence[TopicRule]) -> None:
        self._fields: dict[str, MessageField] = {}
        self._flat: dict[str, tuple[bytes, Callable[[bytes], re.Match[bytes] | None]]] = {}
        for route in routes:
            if route.sequence is not None:
                (field,) = Template.parse(route.sequence, Filter.parse(route.filter)).fields
                self._fields[route.name] = field
                if len(field.steps) == 1 and isinstance(field.steps[0], str):
                    name = json.dumps(field.steps[0], ensure_ascii=False).encode()
                    self._flat[route.name] = name, re.compile(re.escape(name) + rb"\s*:\s*(\d{1,18})\s*[,}]").search

    def __len__(self) -> int:
        return len(self._fields)

    def number(self, rule: str, payload: bytes, properties: dict[str, str]) -> int | None:
        """Return the number of a message, None without one."""
        field = self._fields.get(rule)
        if field is None:
            return None
        if rule in self._flat:
            # An object without objects that has the name once is searched, which costs a fifth of parsing it.
            name, search = self._flat[rule]
            if payload.count(name) == 1 and payload.count(b"{") == 1 and (match := search(payload)) is not None:
                return int(match[1])
        try:
            user = json.loads(properties[P_USER]) if P_USER in properties else []
            return int(read_fields([field], payload, [(str(a), str(b)) for a, b in user])[field.name])
        except (MissingField, ValueError, TypeError, ContractError):
            return None


def window(client: PulsarClient, partition: str, since_us: int, until_us: int) -> Iterator[Message]:
    """Yield the messages of a partition from the begin of the window to before its end. Of an entry all are yielded.

    Raises TransientError and RefusedError as ``read_to_end``.
    """
    reader = client.reader(partition, EARLIEST, queue=_QUEUE, name="pulsebridge-audit")
    try:
        with our_errors(f"reading {partition}"):
            reader.seek(max(1, since_us // 1000))
        last = None
        while (message := received(reader.read_next, _SILENT_MS, f"reading {partition}")) is not None:
            if message.publish_timestamp() * 1000 >= until_us:
                return
            yield message
            last = message
        if last is None and _ends_before(client, partition, since_us):
            return
        # Only at a silence is the end looked up, which costs more than a message.
        end = BEFORE_ALL if last is None else position_of(last.message_id())
        for message in read_to_end(reader, client.settings, partition, last=end):
            if message.publish_timestamp() * 1000 >= until_us:
                return
            yield message
    finally:
        close_quietly(reader)


def _ends_before(client: PulsarClient, partition: str, since_us: int) -> bool:
    """Whether the last message of a partition is older than the window. Without it a wait of seconds would show that."""
    ledgers = ledgers_of(client.settings, partition)
    if ledgers is None or ledgers.end == BEFORE_ALL:
        return ledgers is not None
    end = ledgers.end
    number = int(partition.rpartition("-partition-")[2]) if "-partition-" in partition else -1
    reader = client.reader(partition, message_id(number, end.ledger, end.entry, -1), queue=10)
    try:
        found = received(reader.read_next, _LAST_MS, f"reading {partition}")
    finally:
        close_quietly(reader)
    return found is not None and found.publish_timestamp() * 1000 < since_us


@dataclass(frozen=True)
class LogReader:
    """Reads the window of a partition. Spark's tasks get a copy."""

    pulsar: PulsarSettings
    fields: NumberFields
    explained: frozenset[tuple[str, str, int]]
    """Route, device and number of dead letters."""
    since_us: int
    until_us: int

    def rows(self, client: PulsarClient, partition: str, number: int, numbers: Sequences) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the partition with this number, in its order. ``numbers`` gets the devices' own numbers."""
        rows: list[tuple[Any, ...]] = []
        numbered = bool(self.fields)
        for message in window(client, partition, self.since_us, self.until_us):
            payload, properties, at = message.data(), properties_of(message) or {}, message.message_id()
            own, rule = _ingest(properties.get(P_INGEST, ""))
            device, us, crc = properties.get(P_DEVICE, own), message.publish_timestamp() * 1000, zlib.crc32(payload)
            topic = properties.get(P_TOPIC, "") if has_value(payload) else ""
            arrival = message.event_timestamp() * 1000 or -1
            index = max(0, at.batch_index())
            rows.append((number, at.ledger_id(), at.entry_id(), index, 0, us, arrival, device, crc, topic))
            if numbered and P_REPLAYED not in properties and P_RETAINED not in properties:
                rule = properties.get(P_RULE, rule)
                found = self.fields.number(rule, payload, properties)
                if found is not None:
                    numbers.take(rule, key_of(message) or device, found, us, crc)
            if len(rows) == _BATCH:
                yield batch(rows)
                rows = []
        if rows:
            yield batch(rows)


def batch(rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """Return tuples in the order of ``SCHEMA`` as a batch."""
    arrays = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
