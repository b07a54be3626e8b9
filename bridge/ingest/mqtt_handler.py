"""The protocol handler ``mqtt``: it connects a link to each MQTT broker, without listeners."""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog

from bridge.errors import DeniedError, PulsebridgeError, TerminalError
from bridge.ingest.moving import SessionMover, end_former_connection
from bridge.ingest.session_filters import SessionFilters, wanted_subscriptions
from bridge.ingest.sessions import SessionSlot, advertised, read_advertised, slots, store_session
from bridge.ingest.worker import IngestWorker
from bridge.protocols.handler import ProtocolHandler, Service
from bridge.protocols.sharing import SESSIONS_PROTOCOL
from bridge.protocols.sharing_instance import SharingInstance
from bridge.pulsar.admin import PulsarAdmin
from bridge.routing.rules import resume_filter
from bridge.routing.sharding import AUTO
from bridge.settings import Settings

__all__ = ["LinkRunner", "MqttHandler"]

log = structlog.get_logger("ingest")

_RETRY_S: Final = 60.0
"""How long a refused link waits before it retries, in seconds."""
_LOOK_S: Final = 0.2
_ADVICE_S: Final = 1.5
"""How long the advice to read a session that processes share counts, in seconds."""


class LinkRunner:
    """Runs the link ``name`` in a separate thread until the service stops.

    After a lost connection it reconnects. After a refusal that an operator can fix it waits long. If another process
    uses its client id, the link ends, and the owner decides whether that ends the service. Failures of other links do
    not reach this thread. ``settings.mqtt`` is its connection, ``slot`` its session.

    If the service has no other link, a refusal ends it without a retry. The link's thread calls ``ended`` at its end, with
    the link.

    With ``ingest.shard: auto`` processes share the session (``bridge.protocols.sharing_instance.Share``): the link runs
    while it is wanted here. It is handed over in order: drained, acknowledged, disconnected. The broker gives the
    session to the last process that connects, and what the former one did not acknowledge comes again. So two processes
    that both read it for a moment lose and reorder nothing. A link whose connection was lost does not reconnect before
    it is certain that no other process has taken the session over.
    """

    stuck, away = False, ()
    """As a ``Share``: of one that cannot be reached no other process may do better, and /readyz shows it."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        service: Service,
        slot: SessionSlot,
        ended: Callable[[LinkRunner], None],
    ) -> None:
        self.name = name
        self.has = settings.ingest.shard != AUTO
        """Whether this process reads the session, or is about to."""
        self.worker: IngestWorker | None = None
        self.failure: BaseException | None = None
        """The error that ended it, None while it runs and after a stop."""
        self._settings = settings
        self._service = service
        self._ended = ended
        self._part = service.health.part(f"mqtt {name}", loop=True)
        self._slot = slot
        self._store = ThreadPoolExecutor(1, thread_name_prefix=f"ingest-session-{name}")
        self._was_ready = False
        self._wanted = threading.Event()
        self._advised_at = -math.inf
        if not self._shared:
            self._wanted.set()
        self._thread = threading.Thread(target=self._run, name=f"ingest-{name}", daemon=True)

    @property
    def ready(self) -> bool:
        """Whether the link is connected and has all its subscriptions."""
        worker = self.worker
        return worker is not None and worker.ready and worker.link.connected and self.failure is None

    @property
    def _shared(self) -> bool:
        return self._settings.ingest.shard == AUTO

    def want(self, wanted: bool, *, fence: bool) -> None:
        """Read the session, or hand it over to another process. From any thread."""
        self._advised_at = time.monotonic() if wanted else -math.inf
        if wanted:
            self._wanted.set()
        elif self._wanted.is_set():
            self._wanted.clear()
            self.wake()

    @property
    def _alone(self) -> bool:
        return not self._settings.ingest.links

    @property
    def _ending(self) -> bool:
        return self._service.stopping.is_set() or not self._wanted.is_set()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Make the link check ``service.stopping``, or whether it is wanted."""
        if self._service.stopping.is_set():
            self._wanted.set()  # ends the wait
        worker = self.worker
        if worker is not None:
            worker.link.wake()

    def join(self) -> None:
        """Wait for the thread, which ends soon after ``service.drain_deadline``."""
        self._thread.join()
        self._store.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        try:
            while not self._service.stopping.is_set():
                if self._wanted.wait(1.0) and not self._service.stopping.is_set():
                    self.has = True
                    self._run_shared() if self._shared else self._run_worker()
                if self._shared:
                    self.worker, self.has = None, False
                    self._part.stands_by("another process reads this session")
        except BaseException as e:  # noqa: BLE001 the owner ends the service with it
            self.failure = e
            self._part.failed(str(e))
        self._ended(self)

    def _run_shared(self) -> None:
        try:
            ended, doubt = end_former_connection(self._settings, self._service)
            if ended:
                self._run_worker(doubt=doubt)
        except DeniedError:
            raise
        except TerminalError as e:
            self._report_taken_over(e)

    def _run_worker(self, *, doubt: bool = False) -> None:
        """``doubt``: the session may be a new one, without filters."""
        worker = self._make_worker(doubt=doubt)
        if worker is None:
            return
        self.worker = worker
        try:
            self._serve(worker)
        finally:
            worker.link.disconnect()
            worker.link.close()
            if self._shared:
                worker.intake.close()
                self._was_ready = False
                self._service.changed()

    def _serve(self, worker: IngestWorker) -> None:
        while not self._ending:
            try:
                self._turn(worker, 1.0)
            except DeniedError as e:
                if self._alone:
                    raise
                self._pause(worker, e)
            if self.ready != self._was_ready:
                self._was_ready = self.ready
                self._service.changed()
        self._drain(worker)

    def _turn(self, worker: IngestWorker, most_s: float) -> None:
        """Take a turn. Without a connection to a session that another process may have taken over, only store."""
        now = time.monotonic()
        if worker.link.connected or not self._shared or now - self._advised_at < _ADVICE_S:
            worker.link.turn(min(most_s, worker.intake.next_in(now)))
        else:
            worker.on_turn(now)
            time.sleep(min(most_s, _LOOK_S))

    def _report_taken_over(self, error: TerminalError) -> None:
        """Leave the session to the process that took it over; if that ends, it is for one of the group again."""
        self._wanted.clear()
        self._service.stopping.wait(_ADVICE_S)
        log.warning(
            "another process has taken over an MQTT session. Action: if this repeats, stop the process that uses the "
            "client id and is not one of the group (ingest.shard: auto)",
            link=self.name,
            why=error.what,
            shown=1,
        )

    def _make_worker(self, *, doubt: bool) -> IngestWorker | None:
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
        session_filters = SessionFilters(
            wanted_subscriptions(filters, ingest),
            granted,
            optional=None if resume is None else resume.mqtt,
            remember=self._remember,
        )
        if doubt:
            session_filters.doubt()
        return IngestWorker(
            self._settings,
            self._service.intake,
            name=mqtt.client_id if self._alone else self.name,
            part=self._part,
            filters=session_filters,
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
        while not self._ending and time.monotonic() < until:
            worker.on_turn(time.monotonic())
            self._service.stopping.wait(_LOOK_S)

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
        deadline = time.monotonic() + self._settings.ingest.drain
        while worker.intake.in_flight and time.monotonic() < deadline:
            if self._service.stopping.is_set():
                deadline = min(deadline, self._service.drain_deadline)
            self._turn(worker, _LOOK_S)
        self._turn(worker, 0.0)  # the last acknowledgements
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
        self._sharing: SharingInstance | None = None

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
        shared = self._settings.ingest.shard == AUTO
        for name, mqtt, slot in slots(self._settings, own=True):
            self.links[name] = LinkRunner(
                name,
                self._settings.model_copy(update={"mqtt": mqtt}),
                service,
                slot,
                self._link_ended,
            )
        for other, data in service.advertised(self.protocol_name).items() if not shared else ():
            self._compare(other, data)
        for link in self.links.values():
            link.start()
        if shared:
            # Of equal sessions alone: another deployment has others, and so do other filters.
            which = hashlib.sha256(advertised(self._settings).encode()).hexdigest()[:16]
            shares = dict(enumerate(self.links.values()))
            self._sharing = SharingInstance(self._settings.pulsar, shares, f"{SESSIONS_PROTOCOL}-{which}", polite=True)
            self._sharing.start()

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
        """Return for each link whether it is connected and subscribed; of shared sessions for those that are read here."""
        return {name: link.ready for name, link in self.links.items() if link.has}

    def close(self) -> None:
        """Stop reading, wait for the receipts of messages, acknowledge, and disconnect, all links at once."""
        if self._sharing is not None:
            self._sharing.leave()
        for link in self.links.values():
            link.wake()
        for link in self.links.values():
            link.join()
        if self._sharing is not None:
            self._sharing.stop()
