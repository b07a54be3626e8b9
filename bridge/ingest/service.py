"""Runs ingest: waits for Pulsar, provisions it, and runs the protocol handlers until a signal.

The order of a stop (H9): The handlers accept no more messages, wait for receipts, acknowledge and disconnect. Then the
producers close, then Pulsar's client. Messages that are not stored before the deadline are not acknowledged, so the
sender repeats them.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

import structlog

from bridge.backoff import backoff_s
from bridge.collector import reduce_collections
from bridge.contract import DEAD_LETTERS_TOPIC
from bridge.errors import PulsebridgeError, TransientError
from bridge.health import Health
from bridge.ingest.presence import PresenceWriter
from bridge.intake.intake import Intake
from bridge.intake.provisioning import PolicyWatch, known_topics, provision, verify_topics
from bridge.metrics import serving
from bridge.mqtt.connection_count import mop_collector
from bridge.protocols.board import Advertiser, read_board
from bridge.protocols.listening import Listening
from bridge.protocols.records import InstanceRecord, ProtocolRecord, bounded_topics
from bridge.protocols.running import Phase, Running, load_handlers
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import PulsarClient
from bridge.pulsar.watch import watching, watching_pulsar
from bridge.routing.mapper import Mapper
from bridge.routing.readings_topics import static_topics
from bridge.routing.topic_budget import TopicBudget
from bridge.settings import Settings
from bridge.stopping import CLOSE_S, stopping_on_signals

__all__ = ["IngestService", "run"]

log = structlog.get_logger("ingest")

_POLICIES_S: Final = 60.0
_EXIT_S: Final = 2.0
"""Time of ``CLOSE_S`` for what follows Pulsar's client: watches, listeners, and the exit on a busy machine."""


@dataclass
class _Pulsar:
    client: PulsarClient
    admin: PulsarAdmin
    topics: TopicBudget
    """The Pulsar topics of all intakes that exist or were named."""
    presence: PresenceWriter | None = None


class IngestService:
    """Runs the handlers of one process, and is their ``bridge.protocols.handler.Service``.

    A signal handler or another thread may call ``stop``. ``shares_ports`` lets other workers listen on the same ports.
    """

    def __init__(self, settings: Settings, *, shares_ports: bool = False) -> None:
        self.settings = settings
        self.health = Health(settings.metrics.stuck_after)
        self._part = self.health.part("protocols")
        listening = Listening(self.health, shares_ports=shares_ports)
        self.running = Running(load_handlers(settings.messaging_protocols), listening)
        self.ready = threading.Event()
        """Set once all parts of all handlers are ready together: all links subscribed."""
        self.ended = threading.Event()
        """Set when ``run`` has returned or raised."""
        self.stopping = threading.Event()
        self.drain_deadline = 0.0
        self.closed = False
        """Whether Pulsar's client has closed with all its threads."""
        # Not an Event: the thread that a signal handler interrupts could own its lock.
        self._requests: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._pulsar: _Pulsar | None = None
        self._intakes: list[Intake] = []
        self._advertiser: Advertiser | None = None
        self._start = InstanceRecord.of_this_process(settings.ingest.status_interval)

    # --- for the handlers ---

    @property
    def admin(self) -> PulsarAdmin:
        """Pulsar's admin REST, from START on."""
        assert self._pulsar is not None
        return self._pulsar.admin

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the listeners' connections."""
        return self.running.listening.loop

    def intake(
        self, *, link: str, protocol: str, limit: int, wake: Callable[[], None], presence: bool = True
    ) -> Intake:
        """Return a new intake; its producers close after the last handler."""
        pulsar = self._pulsar
        assert pulsar is not None
        made = Intake(
            self.settings,
            pulsar.client,
            pulsar.admin,
            mapper=Mapper(self.settings, pulsar.topics),
            link=link,
            protocol=protocol,
            limit=limit,
            wake=wake,
            health=self.health,
            alive=partial(self._sighted, pulsar.presence, link) if presence and pulsar.presence is not None else None,
        )
        self._intakes = [*(one for one in self._intakes if not one.closed), made]
        return made

    def _sighted(self, presence: PresenceWriter, link: str, device: str) -> None:
        """Record the device, and have the other links record it as soon as it moves there."""
        presence.note(link, device)
        for intake in self._intakes:
            if intake.metrics.link != link:
                intake.seen_elsewhere(device)

    def advertised(self, protocol: str) -> Mapping[str, str]:
        """Return the data that other live instances advertise for a protocol, by instance."""
        assert self._pulsar is not None
        try:
            board = read_board(self._pulsar.client)
        except PulsebridgeError as e:
            log.debug("the other instances cannot be read", why=e.what)
            return {}
        now_ms = time.time_ns() // 1_000_000
        return {
            r.instance: r.protocols[protocol].data
            for r in board
            if r.instance != self._start.instance and protocol in r.protocols and not r.gone(now_ms)
        }

    def record(self) -> InstanceRecord:
        """Return the current record of this process, which other instances read."""
        state: Literal["starting", "running", "stopping"] = "running" if self.running.running else "starting"
        listeners, ready, data = self.running.listeners, self.running.readiness(), self.running.data
        topics, count = bounded_topics(t for intake in self._intakes for t in list(intake.producers.topics.by_name))
        return replace(
            self._start,
            state="stopping" if self.stopping.is_set() else state,
            written_ms=time.time_ns() // 1_000_000,
            protocols={
                name: ProtocolRecord(data[name], [f"{a.host}:{a.port}" for a in listeners[name]], dict(ready[name]))
                for name in data
            },
            topics=topics,
            topics_count=count,
        )

    def changed(self) -> None:
        """Update health and record after a change of readiness."""
        missing = [
            f"{protocol} {name}"
            for protocol, parts in self.running.readiness().items()
            for name, ready in parts.items()
            if not ready
        ]
        if not self.running.running:
            self._part.waits("starting")
        elif unexplained := [name for name in missing if name not in self.health]:
            self._part.waits(f"not ready: {', '.join(unexplained)}")
        else:
            self._part.ready()
        if self.running.running and not missing:
            self.ready.set()
        if self._advertiser is not None:
            self._advertiser.renew()

    def failed(self, error: BaseException) -> None:
        """Stop everything and end ``run`` with ``error``."""
        self._requests.put(error)

    # --- for the owner ---

    @property
    def in_flight(self) -> int:
        """Messages of all handlers that are not known to be stored."""
        return sum(intake.in_flight for intake in self._intakes)

    def partitions(self) -> dict[str, int]:
        """Return the readings topics written to, with their numbers of partitions. Any thread may call it."""
        return {topic: n for intake in list(self._intakes) for topic, n in intake.producers.topics.partitions.items()}

    def stop(self) -> None:
        """Request a clean stop."""
        self._requests.put(None)

    def run(self) -> None:
        """Run until ``stop``. Raises a handler's error, TerminalError if an operator must fix something."""
        try:
            with ExitStack() as stack:
                self._run(stack)
        finally:
            self.ended.set()
        if self._failure is not None:
            raise self._failure

    def _run(self, stack: ExitStack) -> None:
        admin = stack.enter_context(PulsarAdmin(self.settings.pulsar))
        shown = []
        if self.settings.metrics.mop_names:
            links = self.settings.links().values() if "mqtt" in self.settings.messaging_protocols else ()
            over, listeners = (lambda: self.health.ending), self.running.listening.connections
            shown = [stack.enter_context(mop_collector(links, over, listeners))]
        stack.enter_context(serving(self.settings.metrics, self.health, more=shown))
        self.running.listening.start()
        stack.callback(self.running.listening.end)
        stack.callback(self._stop)
        self.running.go(self, Phase.INITIALIZE)
        topics = self._prepare(admin)
        if topics is None:
            return
        dead_letters = self.settings.pulsar.system_topic(DEAD_LETTERS_TOPIC)
        stack.enter_context(watching_pulsar(self.settings, self.health, dead_letters))
        if self.settings.pulsar.provision != "off":
            look = PolicyWatch(admin, self.partitions).look
            stack.enter_context(watching("policy-watch", _POLICIES_S, look, over=lambda: self.health.ending))
        client = PulsarClient(self.settings.pulsar)
        self._pulsar = _Pulsar(client, admin, topics)
        if self.settings.ingest.presence_interval:
            self._pulsar.presence = PresenceWriter(client, admin)
            self._pulsar.presence.start()
        self.running.go(self, Phase.ADVERTISE)
        self._advertiser = Advertiser(client, self.record, self.settings.ingest.status_interval, tidying=admin)
        self._advertiser.start()
        self.running.go(self, Phase.START)
        self.changed()
        self._wait(None)

    def _prepare(self, admin: PulsarAdmin) -> TopicBudget | None:
        """Provision Pulsar, with retries. Returns the budget of its topics, None if a stop is requested first."""
        attempt = 0
        part = self.health.part("provisioning Pulsar")
        ingest = self.settings.ingest
        while not self.stopping.is_set():
            try:
                presence, resume = ingest.presence_interval > 0, ingest.resume_topic is not None
                provision(admin, static_topics(self.settings), presence=presence, resume=resume)
                if self.settings.pulsar.provision != "off":
                    verify_topics(admin)
                topics = TopicBudget(ingest.limits, known_topics(admin))
                self.health.remove(part)
                return topics
            except TransientError as e:
                part.waits(str(e))
                if attempt == 0:
                    log.warning(
                        "provisioning Pulsar failed, ingest retries. Action: check that Pulsar runs", why=str(e)
                    )
                self._wait(backoff_s(attempt, 0.5, 10.0, 0.5))
                attempt += 1
        return None

    def _wait(self, seconds: float | None) -> None:
        """Wait until a stop is requested, a handler fails, or the time is over."""
        try:
            self._failure = self._requests.get(timeout=seconds)
        except queue.Empty:
            return
        self._begin_stop()

    # --- stopping ---

    def _begin_stop(self) -> None:
        if not self.stopping.is_set():
            self.drain_deadline = time.monotonic() + self.settings.ingest.drain
            self.stopping.set()
            self.health.stopping()

    def _stop(self) -> None:
        self._begin_stop()
        self.running.stop()
        if self._advertiser is not None:
            self._advertiser.stop()
        if self._pulsar is not None and self._pulsar.presence is not None:
            self._pulsar.presence.stop()
        # Pulsar's threads call Python: they must end before the interpreter, or it aborts.
        thread = threading.Thread(target=self._close, name="ingest-close", daemon=True)
        thread.start()
        end = self.drain_deadline + CLOSE_S - _EXIT_S
        thread.join(max(0.0, min(CLOSE_S, end - time.monotonic())))
        self.closed = not thread.is_alive()

    def _close(self) -> None:
        for intake in self._intakes:
            if not intake.closed:
                intake.close()
        try:
            if self._pulsar is not None:
                self._pulsar.client.close()
        except PulsebridgeError as e:
            log.debug("closing the connection to Pulsar", why=e.what)


def run(settings: Settings, *, shares_ports: bool = False) -> bool:
    """Run ingest in the foreground until SIGTERM or SIGINT. Returns whether Pulsar's client has ended cleanly."""
    service = IngestService(settings, shares_ports=shares_ports)
    reduce_collections()
    with stopping_on_signals("ingest", service.stop, settings.ingest.drain + CLOSE_S):
        service.run()
    return service.closed
