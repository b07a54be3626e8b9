"""One MQTT link of ingest in a thread of its own: it lives until the service stops, whatever its connection does.

It decides what a link's failure means: a loss of the connection nothing, a refusal that somebody can mend a long
wait, a client id that another process uses the end of this link. Whether that ends the service is its owner's
decision. Another link's troubles never reach this thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog

from bridge.errors import DeniedError, PulsebridgeError
from bridge.ingest.moving import SessionMover
from bridge.ingest.places import Place
from bridge.ingest.session import wanted_subscriptions
from bridge.ingest.session_memory import SessionMemory
from bridge.ingest.worker import IngestWorker
from bridge.protocols.handler import Service
from bridge.settings import Settings

__all__ = ["LinkRunner"]

log = structlog.get_logger("ingest")

_REVIVE_S: Final = 60.0
"""How long a link that the broker refused waits before it tries again, in seconds."""


class LinkRunner:
    """Runs the link ``name``, whose connection is ``settings.mqtt``; ``place`` is its session.

    ``alone`` tells that the service has no other link: then a refusal ends it, instead of being tried again.
    ``ended`` is called on the link's thread with what ended it, None after a stop.
    """

    def __init__(
        self,
        name: str,
        settings: Settings,
        service: Service,
        place: Place,
        *,
        alone: bool,
        ended: Callable[[LinkRunner, BaseException | None], None],
    ) -> None:
        self.name = name
        self.worker: IngestWorker | None = None
        self.failure: BaseException | None = None
        self._settings = settings
        self._service = service
        self._alone = alone
        self._ended = ended
        self._part = service.health.part(f"mqtt {name}", loop=True)
        self._place = place
        self._memory = SessionMemory(settings.pulsar)
        self._store = ThreadPoolExecutor(1, thread_name_prefix=f"ingest-session-{name}")
        self._was_ready = False
        self._thread = threading.Thread(target=self._run, name=f"ingest-{name}", daemon=True)

    @property
    def ready(self) -> bool:
        """Whether the link is connected and has all its subscriptions."""
        worker = self.worker
        return worker is not None and worker.ready and worker.link.connected and self.failure is None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Make the link look at ``service.stopping``."""
        worker = self.worker
        if worker is not None:
            worker.link.wake()

    def join(self) -> None:
        """Wait for the thread, which ends soon after ``service.drain_deadline``."""
        self._thread.join()
        self._store.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        try:
            self._live()
        except BaseException as e:  # noqa: BLE001 it is handed to the owner, who ends the service with it
            self.failure = e
            self._part.failed(str(e))
        self._ended(self, self.failure)

    def _live(self) -> None:
        worker = self._made()
        if worker is None:
            return
        self.worker = worker
        try:
            while not self._service.stopping.is_set():
                try:
                    worker.link.turn(worker.next_in(time.monotonic()))
                except DeniedError as e:
                    if self._alone:
                        raise
                    self._wait_out(worker, e)
                if self.ready != self._was_ready:
                    self._was_ready = self.ready
                    self._service.changed()
            self._drain(worker)
        finally:
            worker.link.disconnect()
            worker.link.close()

    def _made(self) -> IngestWorker | None:
        """Return the worker, with the filters that the broker's session has; None when stopped before."""
        mover = SessionMover(self._place, self._settings, self._service, self._memory)
        while True:
            try:
                settled, granted = mover.settle()
                break
            except DeniedError as e:
                if self._alone:
                    raise
                self._stands_still(e)
                self._service.stopping.wait(_REVIVE_S)
        if not settled:
            return None
        ingest, mqtt = self._settings.ingest, self._settings.mqtt
        filters = self._place.filters
        log.info(
            "ingest starts",
            link=self.name,
            filters=list(filters),
            client_id=mqtt.client_id,
            protocol=mqtt.protocol,
            order="none: shared subscription" if ingest.share else "per device",
            keys={r.name: r.key or r.device or "{mqtt_topic}" for r in ingest.all_rules} or "{mqtt_topic}",
        )
        return IngestWorker(
            self._settings,
            self._service.intake,
            name=mqtt.client_id if self._alone else self.name,
            part=self._part,
            granted=granted,
            remember=self._remember,
            wanted=wanted_subscriptions(filters, ingest.qos, ingest.retained),
        )

    def _remember(self, filters: dict[str, int]) -> None:
        self._store.submit(_remember, self._memory, self._service, self._place, filters)

    def _wait_out(self, worker: IngestWorker, error: DeniedError) -> None:
        """Say what is to be mended, and stay away from the broker for a while; what was read is still stored."""
        self._stands_still(error)
        worker.link.disconnect()
        worker.ready = False
        self._was_ready = False
        self._service.changed()
        until = time.monotonic() + _REVIVE_S
        while not self._service.stopping.wait(0.2) and time.monotonic() < until:
            worker.on_turn(time.monotonic())

    def _stands_still(self, error: DeniedError) -> None:
        log.error(
            "an MQTT link stands still, the others go on; mend what it names, it is tried again",
            link=self.name,
            why=str(error),
            again_in_s=_REVIVE_S,
        )
        self._part.waits(str(error))

    def _drain(self, worker: IngestWorker) -> None:
        worker.drain(time.monotonic())
        while worker.in_flight and time.monotonic() < self._service.drain_deadline:
            worker.link.turn(min(0.2, worker.next_in(time.monotonic())))
        worker.link.turn(0.0)  # the last acknowledgements
        log.info("ingest stops", link=self.name, unstored=worker.in_flight)


def _remember(memory: SessionMemory, service: Service, place: Place, filters: dict[str, int]) -> None:
    try:
        memory.store(service.admin, place.name, place.remembered(place.name, filters))
    except DeniedError as e:  # it is subscribed anew then; with MQTT 5 that brings no retained message again
        log.info("the subscribed filters are not kept; with MQTT 3 retained messages come again", why=e.what)
    except PulsebridgeError as e:
        log.warning(
            "the subscribed filters could not be kept, after a restart retained messages may come again; check "
            "Pulsar's admin",
            why=str(e),
        )
