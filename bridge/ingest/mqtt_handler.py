"""The protocol handler ``mqtt``: it connects a link to each MQTT broker, without listeners."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog

from bridge.errors import DeniedError, PulsebridgeError
from bridge.ingest.moving import SessionMover
from bridge.ingest.session_filters import SessionFilters, wanted_subscriptions
from bridge.ingest.sessions import SessionSlot, advertised, read_advertised, slots, store_session
from bridge.ingest.worker import IngestWorker
from bridge.protocols.handler import ProtocolHandler, Service
from bridge.pulsar.admin import PulsarAdmin
from bridge.routing.rules import resume_filter
from bridge.settings import Settings

__all__ = ["LinkRunner", "MqttHandler"]

log = structlog.get_logger("ingest")

_RETRY_S: Final = 60.0
"""How long a refused link waits before it retries, in seconds."""


class LinkRunner:
    """Runs the link ``name`` in a separate thread until the service stops.

    After a lost connection it reconnects. After a refusal that an operator can fix it waits long. If another process
    uses its client id, the link ends, and the owner decides whether that ends the service. Failures of other links do
    not reach this thread. ``settings.mqtt`` is its connection, ``slot`` its session.

    ``alone`` means that the service has no other link: a refusal then ends it without a retry. The link's thread calls
    ``ended`` at its end, with the link.
    """

    def __init__(
        self,
        name: str,
        settings: Settings,
        service: Service,
        slot: SessionSlot,
        *,
        alone: bool,
        ended: Callable[[LinkRunner], None],
    ) -> None:
        self.name = name
        self.worker: IngestWorker | None = None
        self.failure: BaseException | None = None
        """The error that ended it, None while it runs and after a stop."""
        self._settings = settings
        self._service = service
        self._alone = alone
        self._ended = ended
        self._part = service.health.part(f"mqtt {name}", loop=True)
        self._slot = slot
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
        """Make the link check ``service.stopping``."""
        worker = self.worker
        if worker is not None:
            worker.link.wake()

    def join(self) -> None:
        """Wait for the thread, which ends soon after ``service.drain_deadline``."""
        self._thread.join()
        self._store.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        try:
            self._run_worker()
        except BaseException as e:  # noqa: BLE001 the owner ends the service with it
            self.failure = e
            self._part.failed(str(e))
        self._ended(self)

    def _run_worker(self) -> None:
        worker = self._make_worker()
        if worker is None:
            return
        self.worker = worker
        try:
            while not self._service.stopping.is_set():
                try:
                    worker.link.turn(worker.intake.next_in(time.monotonic()))
                except DeniedError as e:
                    if self._alone:
                        raise
                    self._pause(worker, e)
                if self.ready != self._was_ready:
                    self._was_ready = self.ready
                    self._service.changed()
            self._drain(worker)
        finally:
            worker.link.disconnect()
            worker.link.close()

    def _make_worker(self) -> IngestWorker | None:
        """Return the worker with the session's filters, None if the service stops first."""
        mover = SessionMover(self._slot, self._settings, self._service)
        while True:
            try:
                settled, granted = mover.settle()
                break
            except DeniedError as e:
                if self._alone:
                    raise
                self._report_refusal(e)
                self._service.stopping.wait(_RETRY_S)
        if not settled:
            return None
        ingest, mqtt = self._settings.ingest, self._settings.mqtt
        filters, resume = self._slot.filters, resume_filter(ingest)
        log.info(
            "ingest starts",
            link=self.name,
            filters=list(filters),
            client_id=mqtt.client_id,
            protocol=mqtt.protocol,
            order="none: shared subscription" if ingest.share else "per device",
            keys={r.name: r.key or r.device or "{mqtt_topic}" for r in ingest.all_routes} or "{mqtt_topic}",
        )
        return IngestWorker(
            self._settings,
            self._service.intake,
            name=mqtt.client_id if self._alone else self.name,
            part=self._part,
            filters=SessionFilters(
                wanted_subscriptions(filters, ingest),
                granted,
                optional=None if resume is None else resume.mqtt,
                remember=self._remember,
            ),
        )

    def _remember(self, filters: dict[str, int]) -> None:
        self._store.submit(_store_filters, self._service.admin, self._slot, filters)

    def _pause(self, worker: IngestWorker, error: DeniedError) -> None:
        """Log the error and disconnect for a while; messages that were read are still stored."""
        self._report_refusal(error)
        worker.link.disconnect()
        worker.ready = False
        self._was_ready = False
        self._service.changed()
        until = time.monotonic() + _RETRY_S
        while not self._service.stopping.wait(0.2) and time.monotonic() < until:
            worker.on_turn(time.monotonic())

    def _report_refusal(self, error: DeniedError) -> None:
        log.error(
            "an MQTT link was refused, the others continue. Action: fix the named cause; ingest retries",
            link=self.name,
            why=str(error),
            retry_in_s=_RETRY_S,
        )
        self._part.waits(str(error))

    def _drain(self, worker: IngestWorker) -> None:
        worker.drain()
        while worker.intake.in_flight and time.monotonic() < self._service.drain_deadline:
            worker.link.turn(min(0.2, worker.intake.next_in(time.monotonic())))
        worker.link.turn(0.0)  # the last acknowledgements
        log.info("ingest stops", link=self.name, unstored=worker.intake.in_flight)


def _store_filters(admin: PulsarAdmin, slot: SessionSlot, filters: dict[str, int]) -> None:
    try:
        store_session(admin, slot.name, slot.remembered(slot.name, filters))
    except DeniedError as e:  # then it resubscribes; with MQTT 5 the broker resends no retained message
        log.info("the subscribed filters are not stored; with MQTT 3 the broker resends retained messages", why=e.what)
    except PulsebridgeError as e:
        log.warning(
            "the subscribed filters could not be stored, after a restart retained messages may be resent. Action: "
            "check Pulsar's admin",
            why=str(e),
        )


class MqttHandler(ProtocolHandler):
    """Runs the links of ``Settings.links``, each in a separate thread."""

    def __init__(self) -> None:
        self.links: dict[str, LinkRunner] = {}
        self._settings = Settings()
        self._service: Service | None = None

    @property
    def protocol_name(self) -> str:
        """``mqtt``."""
        return "mqtt"

    def initialize(self, settings: Settings) -> None:
        """Keep the settings; connect to nothing."""
        self._settings = settings

    def protocol_data_to_advertise(self) -> str:
        """Return the brokers and client ids of the links, as JSON."""
        return advertised(self._settings)

    def start(self, service: Service) -> None:
        """Start every link."""
        self._service = service
        for name, mqtt, slot in slots(self._settings, own=True):
            self.links[name] = LinkRunner(
                name,
                self._settings.model_copy(update={"mqtt": mqtt}),
                service,
                slot,
                alone=not self._settings.ingest.links,
                ended=self._link_ended,
            )
        for other, data in service.advertised(self.protocol_name).items():
            self._compare(other, data)
        for link in self.links.values():
            link.start()

    def _compare(self, other: str, data: str) -> None:
        """Log an instance that advertises a session of this one; only the broker decides (H10)."""
        theirs = read_advertised(data)
        for name, mqtt, _ in slots(self._settings, own=True):
            if (mqtt.address, mqtt.client_id) in theirs:
                log.info(
                    "another instance recently used this link's client id; if it still runs, stop it",
                    link=name,
                    client_id=mqtt.client_id,
                    instance=other,
                )

    def _link_ended(self, link: LinkRunner) -> None:
        # On the link's thread. An unusable broker does not affect the others; the last one ends the service. With one
        # broker each of its sessions ends the service, because no other process would read it.
        assert self._service is not None
        if link.failure is None:
            return
        last = all(one.failure is not None for one in self.links.values())
        if last or not self._settings.ingest.links:
            self._service.failed(link.failure)
        else:
            log.error(
                "an MQTT link has ended for good, the others continue. Action: fix the named cause and restart",
                link=link.name,
                why=str(link.failure),
            )
            self._service.changed()

    def readiness(self) -> Mapping[str, bool]:
        """Return for each link whether it is connected and subscribed."""
        return {name: link.ready for name, link in self.links.items()}

    def close(self) -> None:
        """Stop reading, wait for the receipts of messages, acknowledge, and disconnect, all links at once."""
        for link in self.links.values():
            link.wake()
        for link in self.links.values():
            link.join()
