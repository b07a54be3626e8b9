"""Runs one ingest worker: waits for Pulsar, provisions, reads until a signal, drains, closes in a known order.

The order of a stop (H9): stop reading, wait for the receipts of what was read, acknowledge them, DISCONNECT, close
the producers, then the client. What is not stored within the deadline is not acknowledged and comes again.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import Final

import structlog

from bridge.errors import PulsebridgeError, TransientError
from bridge.ingest.provisioning import SessionMemory, known_topics, provision
from bridge.ingest.session import wanted_subscriptions
from bridge.ingest.worker import IngestWorker
from bridge.mapping import Mapper, subscriptions
from bridge.metrics import serving
from bridge.mqtt.keepalive import backoff_s
from bridge.pulsar_admin import PulsarAdmin
from bridge.pulsar_client import PulsarClient
from bridge.settings import Settings

__all__ = ["IngestService", "run"]

log = structlog.get_logger("ingest")

_CLOSE_S: Final = 5.0


class IngestService:
    """One worker from start to end. ``stop`` may be called from a signal handler or another thread."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.worker: IngestWorker | None = None
        self.ready = threading.Event()
        """Set once the broker has all subscriptions."""
        self.ended = threading.Event()
        """Set when ``run`` is over, whatever ended it."""
        self._stopping = threading.Event()
        self._store = ThreadPoolExecutor(1, thread_name_prefix="ingest-session")

    def stop(self) -> None:
        """Ask for a clean stop."""
        self._stopping.set()
        worker = self.worker
        if worker is not None:
            worker.link.wake()

    def run(self) -> bool:
        """Run until ``stop``. Returns whether everything that was read is stored. Raises TerminalError."""
        with PulsarAdmin(self.settings.pulsar) as admin, serving(self.settings.metrics):
            memory = SessionMemory(self.settings.pulsar, self.settings.mqtt.client_id)
            prepared = self._patiently("provisioning Pulsar", lambda: self._prepare(admin, memory))
            if prepared is None:
                return True
            mapper, granted = prepared
            client = PulsarClient(self.settings.pulsar)
            worker = self._worker(client, admin, mapper, granted, memory)
            self.worker = worker
            try:
                self._read(worker)
                return self._drain(worker)
            finally:
                worker.link.disconnect()
                worker.link.close()
                self._close(worker, client)
                self.ended.set()

    def _prepare(self, admin: PulsarAdmin, memory: SessionMemory) -> tuple[Mapper, dict[str, int] | None]:
        provision(admin)
        known = known_topics(admin)
        return Mapper(self.settings.ingest, pulsar=self.settings.pulsar, known=known), memory.load(admin)

    def _patiently(
        self, doing: str, act: Callable[[], tuple[Mapper, dict[str, int] | None]]
    ) -> tuple[Mapper, dict[str, int] | None] | None:
        attempt = 0
        while not self._stopping.is_set():
            try:
                return act()
            except TransientError as e:
                if attempt == 0:
                    log.warning(
                        f"{doing} does not work yet, trying again; check that Pulsar runs", why=str(e)
                    )
                self._stopping.wait(backoff_s(attempt, 0.5, 10.0, 0.5))
                attempt += 1
        return None

    def _worker(
        self,
        client: PulsarClient,
        admin: PulsarAdmin,
        mapper: Mapper,
        granted: dict[str, int] | None,
        memory: SessionMemory,
    ) -> IngestWorker:
        ingest = self.settings.ingest

        def remember(filters: dict[str, int]) -> None:
            self._store.submit(_remember, memory, admin, filters)

        filters = subscriptions(ingest)
        log.info(
            "ingest starts",
            filters=list(filters),
            client_id=self.settings.mqtt.client_id,
            protocol=self.settings.mqtt.protocol,
            keys={r.name: r.key or r.device or "{mqtt_topic}" for r in ingest.all_rules} or "{mqtt_topic}",
        )
        return IngestWorker(
            self.settings,
            client,
            admin,
            mapper=mapper,
            granted=granted,
            remember=remember,
            wanted=wanted_subscriptions(filters, ingest.qos, ingest.retained),
        )

    def _read(self, worker: IngestWorker) -> None:
        while not self._stopping.is_set():
            worker.link.turn(worker.next_in(time.monotonic()))
            if worker.ready:
                self.ready.set()

    def _drain(self, worker: IngestWorker) -> bool:
        deadline = time.monotonic() + self.settings.ingest.drain_s
        worker.drain(time.monotonic())
        while worker.in_flight and time.monotonic() < deadline:
            worker.link.turn(min(0.2, worker.next_in(time.monotonic())))
        worker.link.turn(0.0)  # the last acknowledgements
        log.info("ingest stops", unstored=worker.in_flight)
        return worker.in_flight == 0

    def _close(self, worker: IngestWorker, client: PulsarClient) -> None:
        # Pulsar's threads call back into Python: they must be gone before the interpreter ends, or it aborts.
        def close() -> None:
            worker.close_intake()
            try:
                client.close()
            except PulsebridgeError as e:
                log.debug("closing the connection to Pulsar", why=e.what)

        thread = threading.Thread(target=close, name="ingest-close", daemon=True)
        thread.start()
        thread.join(_CLOSE_S)
        self._store.shutdown(wait=not thread.is_alive(), cancel_futures=True)
        self.closed = not thread.is_alive()

    closed = False
    """Whether all that Pulsar's client started has ended."""


def _remember(memory: SessionMemory, admin: PulsarAdmin, filters: dict[str, int]) -> None:
    try:
        memory.store(admin, filters)
    except PulsebridgeError as e:
        log.warning(
            "the subscribed filters could not be kept; after a restart retained messages may come again",
            why=str(e),
        )


@contextmanager
def _signals(service: IngestService) -> Iterator[None]:
    """One signal drains, the second kills."""

    def handle(number: int, _frame: FrameType | None) -> None:
        for one in (signal.SIGTERM, signal.SIGINT):
            signal.signal(one, signal.SIG_DFL)
        service.stop()

    before = {one: signal.signal(one, handle) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def run(settings: Settings) -> bool:
    """Run ingest in the foreground until SIGTERM or SIGINT. Returns whether Pulsar's client has ended cleanly."""
    service = IngestService(settings)
    with _signals(service):
        service.run()
    return service.closed
