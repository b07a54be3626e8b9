"""Writes the time of each device's last message to Pulsar, in a separate thread.

Presence records are best effort by design: no reading waits for one, and none is acknowledged by one. A device has at
most one waiting record, unstored ones are retried. If too many wait, the newest are dropped and counted.
``bridge.intake.targets`` decides which messages require a record.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import structlog

from bridge.backoff import backoff_s
from bridge.bounded_map import BoundedMap
from bridge.contract import COMMANDS_TOPIC, PRESENCE_TOPIC
from bridge.contract.partitioning import partition_of
from bridge.contract.presence import PresenceRecord
from bridge.errors import PulsebridgeError, TransientError
from bridge.intake.flow import Reading
from bridge.intake.metrics import INGEST
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import PulsarClient
from bridge.pulsar.provisioning import create_topic, move_retention_subscription
from bridge.pulsar.provisioning_plan import PRESENCE_RETENTION, topic_need
from bridge.pulsar.sending import Receipts
from bridge.pulsar.wire.batches import head_of
from bridge.pulsar.wire.producer import BatchProducer

__all__ = ["PresenceWriter"]

log = structlog.get_logger("ingest")

_WAITING_BYTES: Final = 8 * 1024 * 1024
"""Memory for devices with a waiting record, in bytes: about 20,000 with usual names."""
_GATHER_S: Final = 0.01
_RECEIPT_S: Final = 10.0
_RETRY_S: Final = (0.5, 30.0)
_TIDY_S: Final = 3600.0


class PresenceWriter:
    """The presence records of one process. Any thread may call ``note``, which never blocks or raises."""

    def __init__(self, client: PulsarClient, admin: PulsarAdmin) -> None:
        self._client = client
        self._admin = admin
        self._topic = admin.settings.system_topic(PRESENCE_TOPIC)
        self._lock = threading.Lock()
        self._waiting: BoundedMap[tuple[int, str]] = BoundedMap(_WAITING_BYTES, each=160)
        self._pending = threading.Event()
        self._stopping = threading.Event()
        self._partitions: list[str] = []
        self._producers: dict[str, BatchProducer] = {}
        self._tidied = 0.0
        self._thread = threading.Thread(target=self._run, name="ingest-presence", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def note(self, link: str, device: str) -> None:
        """Note a message of the device that arrived by the link just now."""
        seen_us = time.time_ns() // 1000
        with self._lock:
            self._keep(device, (seen_us, link))
        self._pending.set()

    def _keep(self, device: str, note: tuple[int, str]) -> None:
        if self._waiting.has_room(device):
            self._waiting.put(device, note)
        else:
            INGEST.counters["presence"].labels(note[1], "lost").inc()

    def stop(self) -> None:
        """Stop writing; waiting records are dropped."""
        self._stopping.set()
        self._pending.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        attempt = 0
        while not self._stopping.is_set():
            self._pending.wait()
            self._stopping.wait(_GATHER_S)
            self._pending.clear()
            with self._lock:
                waiting, self._waiting = self._waiting, BoundedMap(_WAITING_BYTES, each=160)
            if not waiting or self._stopping.is_set():
                continue
            try:
                self._write(waiting)
                attempt = 0
                self._tidy()
            except PulsebridgeError as e:
                self._restart()
                with self._lock:
                    for device, note in waiting.items():
                        if device not in self._waiting:
                            self._keep(device, note)
                self._pending.set()
                log.debug("presence records wait", devices=len(waiting), why=str(e))
                self._stopping.wait(backoff_s(attempt, *_RETRY_S, 0.5))
                attempt += 1

    def _write(self, waiting: Mapping[str, tuple[int, str]]) -> None:
        """Write one record for each device and wait for the receipts. Raises the first error."""
        partitions = self._partitions or self._find_partitions()
        records: dict[str, list[Reading]] = defaultdict(list)
        for device, (seen_us, link) in waiting.items():
            record = PresenceRecord(seen_us, link).encode()
            reading = Reading(0, 0, 0.0, record, event_ms=seen_us // 1000, head=head_of(device, {}))
            records[partitions[partition_of(device, len(partitions))]].append(reading)
        receipts = Receipts()
        for partition, readings in records.items():
            if partition not in self._producers:
                self._producers[partition] = self._client.batch_producer(partition)
            self._producers[partition].send(readings, receipts.of(partition))
        receipts.wait(_RECEIPT_S)
        for partition in records:
            error = receipts.error(partition, f"writing to {partition}")
            if error is not None:
                raise error
        for _, link in waiting.values():
            INGEST.counters["presence"].labels(link, "stored").inc()

    def _restart(self) -> None:
        """Close the producers, because one has failed or the topic may have been deleted."""
        self._partitions = []
        while self._producers:
            self._producers.popitem()[1].close()

    def _find_partitions(self) -> list[str]:
        """Return the topic's partitions; create it if allowed. Raises TransientError without any."""
        found = self._client.partitioned(self._topic)
        if not found and self._admin.settings.provision == "create":
            need = topic_need(self._admin.settings, PRESENCE_TOPIC)
            commands = self._admin.partition_count(self._admin.settings.system_topic(COMMANDS_TOPIC))
            create_topic(self._admin, replace(need, partitions=commands or need.partitions))
            found = self._client.partitioned(self._topic)
        if not found:
            raise TransientError(f"{self._topic} does not exist")
        self._partitions = found
        return found

    def _tidy(self) -> None:
        """Let Pulsar trim the topic up to its compaction. Push does so too, but may not run."""
        now = time.monotonic()
        if self._admin.settings.provision == "off" or (self._tidied and now - self._tidied < _TIDY_S):
            return
        self._tidied = now
        try:
            for partition in self._partitions:
                move_retention_subscription(self._admin, partition, PRESENCE_RETENTION)
        except PulsebridgeError as e:
            log.debug("the retention subscription of the presence topic could not be moved", why=str(e))
