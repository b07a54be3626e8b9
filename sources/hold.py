"""The durable subscription that keeps in Pulsar what a query has not read yet.

Rules (H12, H16): it is created at a known place, with what it was created for in its properties, before the first
offset is given out; it is used Exclusive, one consumer for each partition, so that no second query trims under it;
``commit`` first records that a batch was committed, then acknowledges the last entry that exists before the offset,
and the next snapshot shows whether Pulsar followed; it stays when the query stops. Where it begins is decided by
``sources.stream``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from bridge.contract import Position
from bridge.decoding import checked_text, checked_whole, decodes, json_of_record
from bridge.errors import FencedError, RefusedError, TransientError
from bridge.killpoints import reach
from bridge.loggers import get_logger
from bridge.pulsar_admin import PulsarAdmin, subscription_path
from bridge.pulsar_client import Consumer, MessageId, PulsarClient, our_errors
from sources.planning import PartitionView

__all__ = ["Hold", "HoldRecord"]

_log = get_logger("source")
_PROPERTY: Final = "pulsebridge.hold"
_RETRY_S: Final = 0.2


@dataclass(frozen=True)
class HoldRecord:
    """What the properties of the subscription of one partition say."""

    starting: str
    """startingOffsets, as the user gave it."""
    start: Position
    """The place that it led to."""
    committed: bool
    """Whether a batch was committed: from then on the checkpoint, not the subscription, knows the place."""

    def encode(self) -> dict[str, str]:
        """Return the properties."""
        body = {
            "v": 1,
            "startingOffsets": self.starting,
            "start": list(self.start),
            "committed": self.committed,
        }
        return {_PROPERTY: json.dumps(body, sort_keys=True)}

    @classmethod
    @decodes(f"what this source writes as the subscription's property {_PROPERTY}")
    def decode(cls, properties: Mapping[str, str]) -> HoldRecord | None:
        """Read the properties back; None when the subscription was not made by this source. Raises ContractError."""
        if _PROPERTY not in properties:
            return None
        body = json_of_record(properties[_PROPERTY])
        start = Position(*(checked_whole(number) for number in body["start"]))
        return cls(checked_text(body["startingOffsets"]), start, bool(body["committed"]))


@dataclass(frozen=True)
class _Acked:
    """What a partition's subscription was told and did not yet follow; ``at`` is seconds of the monotonic clock."""

    place: Position
    at: float
    repeats: int


class Hold:
    """The subscription ``name`` on every partition of one query. Not for use by several threads."""

    def __init__(self, name: str, admin: PulsarAdmin, client: PulsarClient, *, wait_s: float) -> None:
        self.name = name
        self._admin = admin
        self._client = client
        self._deadline_s = wait_s
        self._consumers: dict[str, Consumer] = {}
        self._records: dict[str, HoldRecord] = {}
        self._acked: dict[str, _Acked] = {}

    def record(self, partition: str) -> HoldRecord | None:
        """Return what stands in the subscription's properties, None when it is not there or not ours."""
        answer = self._admin.request("GET", self._path(partition) + "/properties", accept=(404,))
        return None if answer is None else HoldRecord.decode(answer)

    def create(self, partition: str, record: HoldRecord) -> None:
        """Create the subscription at ``record.start`` with its properties, in one request of the admin.

        When a topic gets partitions, Pulsar copies the subscriptions of its first partition to them, properties
        included, at a moment of its own; such a copy is set to ``record``.
        """
        self._admin.request(
            "PUT",
            self._path(partition),
            accept=(409,),
            body={**_message_id(record.start), "properties": record.encode()},
        )
        if self.record(partition) == record:
            self._records[partition] = record
        else:
            self.move(partition, record)

    def move(self, partition: str, record: HoldRecord) -> None:
        """Set an existing subscription back or forth to ``record.start``; only done when the user asked for it."""
        self._admin.request("POST", self._path(partition) + "/resetcursor", body=_message_id(record.start))
        self._write(partition, record)

    def adopt(self, partition: str, record: HoldRecord) -> None:
        """Write another record to an existing subscription, which stays where it stands."""
        self._write(partition, record)

    def known(self, partition: str) -> HoldRecord | None:
        """Return the record as this process last saw it, without asking."""
        return self._records.get(partition)

    def remember(self, partition: str, record: HoldRecord) -> None:
        """Keep a record that was read, so that it is not asked for again."""
        self._records[partition] = record

    def consumer(self, partition: str) -> Consumer | None:
        """Return the consumer that holds a partition, None where it is not attached."""
        return self._consumers.get(partition)

    def attach(self, partitions: Iterable[str]) -> None:
        """Take the subscription of each partition for this query alone.

        Raises FencedError with the remedy when another consumer holds one for longer than the wait: a query that was
        killed leaves its connection for a moment, a query that runs keeps it.
        """
        until = time.monotonic() + self._deadline_s
        for partition in partitions:
            if partition not in self._consumers:
                self._consumers[partition] = self._subscribe(partition, until)

    def commit(self, views: Mapping[str, PartitionView], ends: Mapping[str, Position]) -> None:
        """Let Pulsar trim what lies before ``ends``.

        1. Record on each partition that a batch was committed: after that no other checkpoint takes the position.
        2. Acknowledge the last existing entry before the end; where there is none, nothing.
        Cut between 1 and 2, more is kept than needed, until the next commit.
        """
        for partition, end in ends.items():
            if partition not in self._consumers:
                continue
            record = self._records.get(partition) or self.record(partition)
            if record is None:
                record = HoldRecord("checkpoint", end, True)
                self._write(partition, record)
            elif not record.committed:
                self._write(partition, HoldRecord(record.starting, record.start, True))
            else:
                self._records[partition] = record
            reach("source_after_record")
            self._acknowledge(partition, views.get(partition), end)
            reach("source_after_ack")

    def check(self, views: Mapping[str, PartitionView]) -> list[str]:
        """Return the partitions whose subscription did not follow the last commit and was told again (H16).

        An acknowledgement has no answer: Pulsar drops it when it moves the topic at that moment. It is made again by
        a new consumer, since a client that once acknowledged a place ignores each earlier one for good, after
        1, 2, 4 ... 64 s; the second time in a row is a warning.
        """
        behind = []
        now = time.monotonic()
        for partition, acked in list(self._acked.items()):
            held = views[partition].holds.get(self.name) if partition in views else None
            if held is not None and held >= acked.place:
                del self._acked[partition]
            elif now - acked.at > 2.0 ** min(acked.repeats, 6):  # the client sends it within 100 ms
                behind.append(partition)
                log = _log.warning if acked.repeats == 1 else _log.debug
                log(
                    "the subscription did not follow the commit, told again; its backlog grows: look for who moves it",
                    subscription=self.name,
                    partition=partition,
                    committed=list(acked.place),
                    position=None if held is None else list(held),
                )
        self._leave(behind)
        self.attach(behind)
        for partition in behind:
            self._tell(partition, self._acked[partition].place, self._acked[partition].repeats + 1)
        return behind

    @property
    def waits(self) -> bool:
        """Whether a commit was told to Pulsar and not seen there yet."""
        return bool(self._acked)

    def close(self) -> None:
        """Give the subscriptions free; they stay in Pulsar and go on holding."""
        self._leave(list(self._consumers))

    def _leave(self, partitions: Iterable[str]) -> None:
        for partition in partitions:
            consumer = self._consumers.pop(partition, None)
            if consumer is None:  # it could not be attached again the last time
                continue
            try:
                with our_errors(f"leaving {self.name} on {partition}"):
                    consumer.close()
            except (TransientError, RefusedError, FencedError) as e:
                _log.debug("a subscription was not left cleanly", partition=partition, error=str(e))

    def _subscribe(self, partition: str, until: float) -> Consumer:
        while True:
            try:
                # No receiver queue: the consumer only acknowledges, data is read by the tasks' own readers.
                return self._client.consumer(partition, self.name, kind="Exclusive", queue=0)
            except FencedError as e:
                if time.monotonic() > until:
                    raise FencedError(
                        f"subscription {self.name!r} on {partition} is in use by another query",
                        remedy="stop that query, or give this one a predefinedSubscription of its own",
                    ) from e
            except TransientError:
                if time.monotonic() > until:
                    raise
            time.sleep(_RETRY_S)

    def _acknowledge(self, partition: str, view: PartitionView | None, end: Position) -> None:
        place = None if view is None else view.last_before(end)
        if place is None:
            return
        held = view.holds.get(self.name) if view is not None else None
        if held is not None and held >= place:
            return
        told = self._acked.get(partition)
        if told is not None and told.place > place:
            self._leave([partition])
            self.attach([partition])
        self._tell(partition, place)

    def _tell(self, partition: str, place: Position, repeats: int = 0) -> None:
        with our_errors(f"acknowledging {partition} up to {place} on {self.name}"):
            self._consumers[partition].acknowledge_cumulative(MessageId(-1, place.ledger, place.entry, -1))
        self._acked[partition] = _Acked(place, time.monotonic(), repeats)

    def _write(self, partition: str, record: HoldRecord) -> None:
        self._admin.request("PUT", self._path(partition) + "/properties", body=record.encode())
        self._records[partition] = record

    def _path(self, partition: str) -> str:
        return subscription_path(partition, self.name)


def _message_id(place: Position) -> dict[str, int | bool]:
    return {
        "ledgerId": place.ledger,
        "entryId": place.entry,
        "partitionIndex": -1,
        "batchIndex": -1,
        "isExcluded": False,
    }
