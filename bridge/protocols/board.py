"""The instances topic: each process writes and renews its record, any process reads all records.

Records are best effort by design: messages flow even if a record cannot be written. Pulsar compacts the topic by
threshold. If its rights allow, each writer also has it compacted and trimmed from time to time, so that heartbeats do
not accumulate. A durable subscription prevents its deletion while no process runs (H24).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from bridge.contract import INSTANCES_TOPIC, partition_name
from bridge.errors import ContractError, PulsebridgeError, TerminalError
from bridge.protocols.records import InstanceRecord
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import Producer, PulsarClient, our_errors
from bridge.pulsar.messages import leave_out_foreign, record_key
from bridge.pulsar.provisioning import move_retention_subscription
from bridge.pulsar.provisioning_plan import INSTANCES_RETENTION, compact_step
from bridge.pulsar.sending import Receipts, close_quietly
from bridge.pulsar.topic_end import read_partition

__all__ = ["Advertiser", "read_board", "tidy"]

log = structlog.get_logger("protocols")

_TOMBSTONE_S: Final = 2.0
_ANSWER_S: Final = 0.5
_TIDY_S: Final = 3600.0
_FORGET_MS: Final = 7 * 24 * 3600 * 1000
"""How long the record of an instance without a clean stop is kept, in ms."""


class Advertiser:
    """Writes this process's record every ``interval_s`` seconds in a separate thread; ``record`` creates it."""

    def __init__(
        self,
        client: PulsarClient,
        record: Callable[[], InstanceRecord],
        interval_s: float,
        *,
        tidying: PulsarAdmin | None = None,
    ) -> None:
        """With the admin ``tidying`` it has the topic compacted too. Its next record waits for that."""
        self._client = client
        self._tidying = None if client.settings.provision == "off" else tidying
        self._record = record
        self._interval_s = interval_s
        self._partition = partition_name(client.settings.system_topic(INSTANCES_TOPIC), 0)
        self._producer: Producer | None = None
        self._receipts = Receipts()  # of the last record
        self._stopping = threading.Event()
        self._now = threading.Event()
        self._complained = False
        self._key = record().instance
        self._thread = threading.Thread(target=self._run, name="advertiser", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def renew(self) -> None:
        """Write the record soon, because it has changed."""
        self._now.set()

    def stop(self) -> None:
        """Remove the record, and wait a moment for that."""
        self._stopping.set()
        self._now.set()
        self._thread.join(_ANSWER_S + _TOMBSTONE_S + 0.5)

    def _run(self) -> None:
        tidied = time.monotonic() - _TIDY_S  # at once, because a former process may have left many records
        while not self._stopping.is_set():
            self._now.clear()
            self._try(lambda: self._write(self._record().encode()))
            if self._tidying and time.monotonic() - tidied >= _TIDY_S and self._producer is not None:
                tidied = time.monotonic()
                self._try(partial(self._tidy, self._tidying), quietly=True)
            self._now.wait(self._interval_s)
            self._stopping.wait(min(0.2, self._interval_s / 4))  # several simultaneous changes make one record
        # The last record may be in flight. If its receipt does not come soon, Pulsar is unreachable.
        if self._producer is not None and self._receipts.wait(_ANSWER_S):
            self._try(lambda: self._write(b""), quietly=True)
            self._receipts.wait(_TOMBSTONE_S)

    def _try(self, act: Callable[[], None], *, quietly: bool = False) -> None:
        try:
            act()
        except PulsebridgeError as e:
            if quietly or self._complained:
                log.debug("instances topic", why=str(e))
            else:
                self._complained = True
                log.info("`pulsebridge status` does not show this process, all else works", why=str(e))

    def _write(self, payload: bytes, key: str | None = None) -> None:
        if not self._receipts.wait(0):
            return  # Pulsar is unreachable: one record waits already
        writing = f"writing to {self._partition}"
        if self._producer is not None and self._receipts.error(0, writing) is not None:
            broken, self._producer = self._producer, None
            close_quietly(broken)
        if self._producer is None:
            self._producer = self._opened()
        receipts = Receipts()
        with our_errors(writing):
            self._producer.send_async(payload, receipts.of(0), partition_key=key or self._key)
        self._receipts = receipts

    def _opened(self) -> Producer:
        topic = self._client.settings.system_topic(INSTANCES_TOPIC)
        if not self._client.partitioned(topic):
            raise TerminalError(
                f"{topic} does not exist",
                remedy="let an operator run the commands that `pulsebridge provision --dry-run` prints",
            )
        return self._client.producer(self._partition, batching=False)

    def _tidy(self, admin: PulsarAdmin) -> None:
        now_ms = time.time_ns() // 1_000_000
        for record in read_board(self._client):
            if now_ms - record.written_ms > _FORGET_MS and self._receipts.wait(_TOMBSTONE_S):
                self._write(b"", record.instance)
        tidy(admin)


def tidy(admin: PulsarAdmin) -> None:
    """Compact the instances topic, and trim it up to the former compaction. Raises DeniedError without the right."""
    partition = partition_name(admin.settings.system_topic(INSTANCES_TOPIC), 0)
    move_retention_subscription(admin, partition, INSTANCES_RETENTION)
    admin.do(compact_step(partition))


def read_board(client: PulsarClient, over: Callable[[], bool] = lambda: False) -> list[InstanceRecord]:
    """Return the record of each instance, by name; none if the topic does not exist. It blocks, until ``over``.

    Raises TransientError if Pulsar is unreachable, DeniedError without the right to consume.
    """
    topic = client.settings.system_topic(INSTANCES_TOPIC)
    if not client.partitioned(topic):
        return []
    found: dict[str, InstanceRecord] = {}
    partition = partition_name(topic, 0)
    for message in read_partition(client, partition, compacted=True, over=over):
        key, payload = record_key(message, partition), message.data()
        if key is None:
            continue
        found.pop(key, None)
        if payload:
            try:
                found[key] = InstanceRecord.decode(payload)
            except ContractError as e:
                leave_out_foreign(partition, message.message_id(), e.what, key)
    return [found[name] for name in sorted(found)]
