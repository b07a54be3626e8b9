"""The durable subscription that retains unread messages of a query in Pulsar.

Rules (H12, H16). It is created at a known position, with its purpose in its properties, before the first offset is
returned. It is Exclusive, one consumer for each partition, so that no second query acknowledges on it. ``commit``
first records that a batch was committed, then acknowledges the last existing entry before the offset. The next
snapshot shows whether Pulsar applied that. It stays when the query stops. ``sources.stream`` decides where it begins.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from bridge.contract import Position
from bridge.contract.decoding import checked_text, checked_whole, decodes, json_of_record
from bridge.errors import FencedError, PulsebridgeError, RefusedError, TransientError
from bridge.killpoints import reach
from bridge.loggers import get_logger
from bridge.pulsar.admin import PulsarAdmin, subscription_path
from bridge.pulsar.client import Consumer, MessageId, PulsarClient, our_errors
from sources.planning import PartitionView

__all__ = ["RetentionSubscription", "SubscriptionRecord"]

_log = get_logger("source")
_PROPERTY: Final = "pulsebridge.retention"
_RETRY_S: Final = 0.2


@dataclass(frozen=True)
class SubscriptionRecord:
    """The properties of the subscription of one partition."""

    starting: str
    """startingOffsets, as the user gave it."""
    start: Position
    """The position resolved from it."""
    committed: bool
    """Whether a batch was committed. From then on the checkpoint, not the subscription, has the position."""

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
    @decodes(f"a record of this source in the subscription's property {_PROPERTY}")
    def decode(cls, properties: Mapping[str, str]) -> SubscriptionRecord | None:
        """Decode the properties; None if another program made the subscription. Raises ContractError."""
        if _PROPERTY not in properties:
            return None
        body = json_of_record(properties[_PROPERTY])
        start = Position(*(checked_whole(number) for number in body["start"]))
        return cls(checked_text(body["startingOffsets"]), start, bool(body["committed"]))


@dataclass(frozen=True)
class _Acked:
    """An acknowledgement that Pulsar has not shown yet; ``at`` is seconds of the monotonic clock."""

    position: Position
    at: float
    repeats: int


class RetentionSubscription:
    """The subscription ``name`` on every partition of one query. Not thread-safe."""

    def __init__(self, name: str, admin: PulsarAdmin, client: PulsarClient, *, wait_s: float) -> None:
        self.name = name
        self._admin = admin
        self._client = client
        self._deadline_s = wait_s
        self._consumers: dict[str, Consumer] = {}
        self._records: dict[str, SubscriptionRecord] = {}
        self._acked: dict[str, _Acked] = {}
        self._renewals = client.renewals

    def record(self, partition: str) -> SubscriptionRecord | None:
        """Return the record in the subscription's properties, None if it is missing or not ours."""
        answer = self._admin.request("GET", self._path(partition) + "/properties", accept=(404,))
        return None if answer is None else SubscriptionRecord.decode(answer)

    def create(self, partition: str, record: SubscriptionRecord) -> None:
        """Create the subscription at ``record.start`` with its properties, in one admin request.

        If a topic gets partitions, Pulsar copies the subscriptions of its first partition, with their properties, to
        them at an unknown time. Such a copy is reset to ``record``.
        """
        self._admin.request(
            "PUT",
            self._path(partition),
            accept=(409,),
            body={**_cursor_position(record.start), "properties": record.encode()},
        )
        if self.record(partition) == record:
            self._records[partition] = record
        else:
            self.move(partition, record)

    def move(self, partition: str, record: SubscriptionRecord) -> None:
        """Reset an existing subscription to ``record.start``; only called at the user's request."""
        self._admin.request("POST", self._path(partition) + "/resetcursor", body=_cursor_position(record.start))
        self._write(partition, record)

    def adopt(self, partition: str, record: SubscriptionRecord) -> None:
        """Write another record to an existing subscription, without moving it."""
        self._write(partition, record)

    def known(self, partition: str) -> SubscriptionRecord | None:
        """Return the record that this process last read or wrote, without a request."""
        return self._records.get(partition)

    def remember(self, partition: str, record: SubscriptionRecord) -> None:
        """Cache a record that was read, to save a request."""
        self._records[partition] = record

    def consumer(self, partition: str) -> Consumer | None:
        """Return the consumer attached to a partition, None if there is none."""
        self._follow_client()
        return self._consumers.get(partition)

    def attach(self, partitions: Iterable[str]) -> None:
        """Attach this query exclusively to the subscription of each partition.

        Raises FencedError with the remedy if another consumer stays attached for longer than the wait. A killed query
        stays connected for a moment only.
        """
        until = time.monotonic() + self._deadline_s
        for partition in partitions:
            if partition not in self._consumers:
                self._consumers[partition] = self._subscribe(partition, until)

    def commit(self, views: Mapping[str, PartitionView], stops: Mapping[str, Position]) -> None:
        """Let Pulsar trim the entries before ``stops``.

        1. Record on each partition that a batch was committed: then no other checkpoint uses the position.
        2. Acknowledge the last existing entry before the end, if there is one.
        After a crash between 1 and 2, Pulsar keeps more than needed until the next commit.
        """
        self._follow_client()
        for partition, end in stops.items():
            if partition not in self._consumers:
                continue
            record = self._records.get(partition) or self.record(partition)
            if record is None:
                record = SubscriptionRecord("checkpoint", end, True)
                self._write(partition, record)
            elif not record.committed:
                self._write(partition, SubscriptionRecord(record.starting, record.start, True))
            else:
                self._records[partition] = record
            reach("source_after_record")
            self._acknowledge(partition, views.get(partition), end)
            reach("source_after_ack")

    def check(self, views: Mapping[str, PartitionView]) -> list[str]:
        """Resend acknowledgements that Pulsar did not apply, and return their partitions (H16).

        An acknowledgement has no answer: Pulsar drops it while it moves the topic. A new consumer resends it after
        1, 2, 4 ... 64 s, because a client permanently ignores positions before its last acknowledgement. The second
        resend in a row is a warning.
        """
        lagging = []
        now = time.monotonic()
        for partition, acked in list(self._acked.items()):
            mark_delete = views[partition].mark_deletes.get(self.name) if partition in views else None
            if mark_delete is not None and mark_delete >= acked.position:
                del self._acked[partition]
            elif now - acked.at > 2.0 ** min(acked.repeats, 6):  # the client sends it within 100 ms
                lagging.append(partition)
                log = _log.warning if acked.repeats == 1 else _log.debug
                log(
                    "the subscription did not follow the commit; the acknowledgement is resent and the backlog grows. "
                    "Action: find the client that moves the subscription",
                    subscription=self.name,
                    partition=partition,
                    committed=list(acked.position),
                    position=None if mark_delete is None else list(mark_delete),
                )
        self._detach(lagging)
        self.attach(lagging)
        for partition in lagging:
            self._send(partition, self._acked[partition].position, self._acked[partition].repeats + 1)
        return lagging

    @property
    def waits(self) -> bool:
        """Whether Pulsar has not yet shown an acknowledgement."""
        return bool(self._acked)

    def close(self) -> None:
        """Detach from the subscriptions; they stay in Pulsar and retain data."""
        self._detach(list(self._consumers))

    def _follow_client(self) -> None:
        """Attach again if the client was replaced, because that closed its consumers."""
        renewals = self._client.renewals
        if renewals != self._renewals:
            until = time.monotonic() + self._deadline_s
            for name, consumer in self._consumers.items():
                with suppress(PulsebridgeError), our_errors(f"detaching from {self.name} on {name}"):
                    consumer.close()  # it may have been attached meanwhile
                self._consumers[name] = self._subscribe(name, until)
            self._renewals = renewals

    def _detach(self, partitions: Iterable[str]) -> None:
        for partition in partitions:
            consumer = self._consumers.pop(partition, None)
            if consumer is None:  # the last attempt to attach it failed
                continue
            try:
                with our_errors(f"detaching from {self.name} on {partition}"):
                    consumer.close()
            except (TransientError, RefusedError, FencedError) as e:
                _log.debug("a subscription was not detached cleanly", partition=partition, error=str(e))

    def _subscribe(self, partition: str, until: float) -> Consumer:
        while True:
            try:
                # No receiver queue: the consumer only acknowledges. The tasks read with their own readers.
                return self._client.consumer(partition, self.name, queue=0)
            except FencedError as e:
                if time.monotonic() > until:
                    raise FencedError(
                        f"subscription {self.name!r} on {partition} is in use by another query",
                        remedy="stop that query, or give this one another predefinedSubscription",
                    ) from e
            except TransientError:
                if time.monotonic() > until:
                    raise
            time.sleep(_RETRY_S)

    def _acknowledge(self, partition: str, view: PartitionView | None, end: Position) -> None:
        position = None if view is None else view.last_before(end)
        if position is None:
            return
        mark_delete = view.mark_deletes.get(self.name) if view is not None else None
        if mark_delete is not None and mark_delete >= position:
            return
        sent = self._acked.get(partition)
        if sent is not None and sent.position > position:
            self._detach([partition])
            self.attach([partition])
        self._send(partition, position)

    def _send(self, partition: str, position: Position, repeats: int = 0) -> None:
        with our_errors(f"acknowledging {partition} up to {position} on {self.name}"):
            self._consumers[partition].acknowledge_cumulative(MessageId(-1, position.ledger, position.entry, -1))
        self._acked[partition] = _Acked(position, time.monotonic(), repeats)

    def _write(self, partition: str, record: SubscriptionRecord) -> None:
        self._admin.request("PUT", self._path(partition) + "/properties", body=record.encode())
        self._records[partition] = record

    def _path(self, partition: str) -> str:
        return subscription_path(partition, self.name)


def _cursor_position(position: Position) -> dict[str, int | bool]:
    return {
        "ledgerId": position.ledger,
        "entryId": position.entry,
        "partitionIndex": -1,
        "batchIndex": -1,
        "isExcluded": False,
    }
