"""Reads the messages of the readings topics, without Pulsebridge's Spark source.

Entries are read as Pulsar stores them, each exactly once and in order: which there are, Pulsar's admin reports. From an
entry on that does not come, or that ``entries`` does not decode, Pulsar's client reads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridge.contract import P_USER, Position
from bridge.contract.commands import CommandPosition
from bridge.errors import ContractError, PulsebridgeError
from bridge.loggers import get_logger
from bridge.pulsar.admin import PulsarAdmin, position_at
from bridge.pulsar.client import Message, PulsarClient, message_id, received
from bridge.pulsar.messages import position_of
from bridge.pulsar.sending import close_quietly
from bridge.pulsar.topic_end import Ledgers, read_to_end
from bridge.pulsar.wire.entry_reader import WireReaders
from bridge.routing.message_fields import MessageField, MissingField, read_fields
from bridge.routing.templates import Filter, Template
from bridge.settings.rules import TopicRule
from pulsebridge.audit.live.buckets import SCHEMA
from pulsebridge.audit.live.entries import Columns, Kind, Messages, Unread
from pulsebridge.audit.live.payloads import Payloads
from pulsebridge.audit.live.sequence import NO_NUMBER, Sequences

if TYPE_CHECKING:
    from bridge.settings import PulsarSettings

__all__ = ["LogReader", "NumberFields", "has_value", "window"]

log = get_logger("audit")

_PERMITS: Final = 20_000
"""Messages that the broker may send before it gets further permits."""
_QUEUE: Final = 1000
_SILENT_MS: Final = 200
_ENTRY_S: Final = 5.0
_MOST: Final = 1 << 62
"""Larger numbers are not counts."""
_NO_VALUE: Final = re.compile(rb"null|\{\}|\[\]").search


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
        self._flat: dict[str, bytes] = {}
        """Name of the field, as JSON, of a route whose field is at the top."""
        for route in routes:
            if route.sequence is not None:
                (field,) = Template.parse(route.sequence, Filter.parse(route.filter)).fields
                self._fields[route.name] = field
                if len(field.steps) == 1 and isinstance(field.steps[0], str):
                    self._flat[route.name] = json.dumps(field.steps[0], ensure_ascii=False).encode()

    def __contains__(self, rule: str) -> bool:
        return rule in self._fields

    def number(self, rule: str, payload: bytes, properties: dict[str, str]) -> int | None:
        """Return the number of a message, None without one."""
        field = self._fields.get(rule)
        if field is None:
            return None
        try:
            user = json.loads(properties[P_USER]) if P_USER in properties else []
            return int(read_fields([field], payload, [(str(a), str(b)) for a, b in user])[field.name])
        except (MissingField, ValueError, TypeError, ContractError):
            return None

    def numbers(self, rule: str, payloads: Payloads, at: Any, kinds: Sequence[Kind], of: Any) -> Any:
        """Return the number of each message of a route, NO_NUMBER without one.

        ``at``: where they are in ``payloads``. ``of``: the index in ``kinds`` of each.
        """
        found = np.full(len(at), NO_NUMBER)
        if rule in self._flat:
            found = payloads.numbers(self._flat[rule])[at]
        for n in np.flatnonzero(found == NO_NUMBER).tolist():
            number = self.number(rule, payloads.all[at[n]], kinds[of[n]].properties)
            found[n] = NO_NUMBER if number is None or abs(number) > _MOST else number
        return found


def window(client: PulsarClient, partition: str, since_us: int, until_us: int) -> Generator[Message]:
    """Yield the messages of a partition from the begin of the window to before its end. Of an entry all are yielded.

    Raises TransientError and RefusedError as ``read_to_end``.
    """
    with PulsarAdmin(client.settings) as admin:
        begin = position_at(admin, partition, max(1, since_us // 1000))
    if begin is None:
        return
    last = CommandPosition(begin.ledger, begin.entry - 1)
    reader = client.reader(partition, message_id(-1, *begin, -1), queue=_QUEUE, name="pulsebridge-audit")
    try:
        while (message := received(reader.read_next, _SILENT_MS, f"reading {partition}")) is not None:
            if message.publish_timestamp() * 1000 >= until_us:
                return
            yield message
            last = position_of(message.message_id())
        # Only at a silence is the end looked up, which costs more than a message.
        for message in read_to_end(reader, client.settings, partition, last=last):
            if message.publish_timestamp() * 1000 >= until_us:
                return
            yield message
    finally:
        close_quietly(reader)


@dataclass(frozen=True)
class LogReader:
    """Reads the window of a partition. Spark's tasks get a copy."""

    pulsar: PulsarSettings
    fields: NumberFields
    explained: frozenset[tuple[str, str, int]]
    """Route, device and number of dead letters."""
    due: Mapping[str, bytes]
    """By MQTT topic: by bit, which tables must have a row of each message."""
    since_us: int
    until_us: int

    def rows(self, client: PulsarClient, partition: str, number: int, numbers: Sequences) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the partition with this number, in its order. ``numbers`` gets the devices' own numbers."""
        messages, done = Messages(), Position(-1, -1)
        try:
            for at in self._entries(partition, messages):
                rows = self._rows(number, messages, numbers)
                if rows.num_rows:  # none if all of them were of batches that are cut
                    yield rows
                done = at
            return
        except (Unread, PulsebridgeError) as e:
            log.debug("Pulsar's client reads on", partition=partition, after=str(done), why=str(e))
        messages.clear()
        for message in window(client, partition, self.since_us, self.until_us):
            if position_of(message.message_id())[:2] > done:
                messages.add_message(message)
            if messages.full:
                yield self._rows(number, messages, numbers)
        if messages:
            yield self._rows(number, messages, numbers)

    def _entries(self, partition: str, messages: Messages) -> Iterator[Position]:
        """Read the entries of the window into ``messages``. Yield the position of the last one whenever these are full.

        Raises Unread at an entry that does not come, and else as ``WireReaders.reader``.
        """
        with PulsarAdmin(self.pulsar) as admin:
            first = position_at(admin, partition, max(1, self.since_us // 1000))
            wanted = Ledgers(admin.internal_stats(partition)).positions(first) if first else iter(())
        begin = next(wanted, None)
        if begin is None:
            return
        with closing(WireReaders(self.pulsar)) as readers:
            reader = readers.reader(partition, *begin, permits=_PERMITS)
            for at in chain([begin], wanted):
                raw = reader.receive(_ENTRY_S)
                if raw is None or raw[:2] != at:
                    raise Unread(f"{at} does not come")
                if (count := messages.add(raw, self.until_us)) is None:
                    break
                reader.took(count, _PERMITS)
                if messages.full:
                    yield at
            if messages:
                yield at

    def _rows(self, part: int, messages: Messages, numbers: Sequences) -> pa.RecordBatch:
        """Return the rows of these messages, and clear them. ``numbers`` gets the devices' own numbers. Raises Unread."""
        found = messages.columns()
        messages.clear()
        payloads, size = found.payloads, len(found.payloads)
        crc = payloads.checksums()
        devices = pa.array([kind.device for kind in found.kinds], pa.string()).take(pa.array(found.of))
        due = pa.array([self.due[kind.topic] for kind in found.kinds], pa.binary()).take(pa.array(found.of))
        if payloads.shortest() < 3 or payloads.some_has(b"null", b"{}", b"[]"):
            due = pc.if_else(pa.array(list(map(has_value, payloads.all)), pa.bool_()), due, b"")
        self._number(found, crc, numbers)
        at = np.full(size, part), found.ledger, found.entry, found.index, np.zeros(size, np.int64)
        columns = *at, found.us, found.arrivals, devices, crc, due, pa.repeat("", size)
        return pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
        )

    def _number(self, found: Columns, crc: Any, numbers: Sequences) -> None:
        names = [(kind.rule, kind.key) for kind in found.kinds]
        for rule in {rule for rule, _ in names if rule in self.fields}:
            at = np.flatnonzero(np.array([one == rule for one, _ in names])[found.of])
            of = found.of[at]
            own = self.fields.numbers(rule, found.payloads, at, found.kinds, of)
            numbers.take_all(names, of, own, found.us[at], crc[at])


def batch(rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """Return tuples in the order of ``SCHEMA`` as a batch."""
    arrays = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
