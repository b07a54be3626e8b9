"""Commands for protocol handlers whose devices do not speak MQTT, and whose connections run on an event loop.

``fetch`` returns the next command of a device, ``confirm`` what the device says of it. Each device has an MQTT session at
the broker (``device_session``), so push serves it as any other device: in order, with repeats marked, parked while it is
absent, and with a receipt for each command. All sessions share one thread and wait together.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from bridge.bounded_map import BoundedMap
from bridge.contract.names import name_problem
from bridge.errors import ConfigError
from bridge.mqtt.turns import turn_all
from bridge.poller import Poller
from bridge.protocols.commands import CommandOutcome
from bridge.protocols.device_session import DeviceRequest, DeviceSession, SessionContext
from bridge.routing.templates import Filter
from bridge.settings.fetch import FetchSettings, fetched_topics, status_of
from bridge.threads import start_thread

if TYPE_CHECKING:
    from bridge.protocols.handler import Service

__all__ = ["AwaitedCommands"]

_TURN_S: Final = 1.0
_DIALS: Final = 16
"""Sessions that connect at the same time, because each dials in a thread of its own."""
_GIVEN: Final = 16
_GIVEN_BYTES: Final = 16 * 1024 * 1024
"""Positions that are remembered of a device; memory for those of all devices."""
_HELD_BYTES: Final = 64 * 1024 * 1024
"""Commands in memory that devices have not confirmed. Beyond it the session of the device with most of them ends; its commands
stay at the MQTT broker.
"""


class AwaitedCommands:
    """The sessions of the devices that fetch at this process.

    The thread of ``service.loop`` calls ``fetch`` and ``confirm``. Cancelling a future says that its client is gone. An
    intake beside it is made with ``presence=False``: a message of such a device does not show that it gets commands.
    """

    def __init__(self, service: Service, fetch: FetchSettings) -> None:
        """Raises ConfigError if the settings do not let devices fetch commands."""
        problem = service.settings.fetch_problem(fetch)
        if problem is not None:
            raise ConfigError(f"commands to devices that fetch them{problem}")
        self._loop = service.loop
        self._context = SessionContext(service.settings, fetch, Poller(), time.monotonic)
        self._inbox: deque[Callable[[], None]] = deque()
        self._sessions: dict[str, DeviceSession] = {}
        self._given: BoundedMap[deque[str]] = BoundedMap(_GIVEN_BYTES, each=_GIVEN * 128)
        self._stopping = threading.Event()
        self._deadline = 0.0
        self._thread = start_thread("device-sessions", self._run, service.failed)

    # --- on the event loop ---

    def topics(self, device: str) -> tuple[Filter, ...] | None:
        """Return the topics of a device's commands; a credential that may fetch them covers all of them. None if no device
        has this name.
        """
        settings = self._context.settings
        invalid = set("+#\0") & set(device) or name_problem(device, settings.max_name_bytes) is not None
        if invalid or status_of(settings.push.presence.rules, device) is None:
            return None
        return tuple(Filter.parse(one) for one in fetched_topics(device, self._context.fetch))

    def fetch(self, device: str, after: str, wait_s: float) -> asyncio.Future[CommandOutcome]:
        """Return the device's next command that is not confirmed, once there is one.

        ``after`` is the position of the last command that the device has had, empty without one: it confirms that
        command, without an answer. A newer request of the device ends this one. ``device`` is a name with ``topics``.
        """
        return self._ask(lambda end: DeviceRequest(device, after, end, wait_s))

    def confirm(self, device: str, position: str, payload: bytes, *, failed: bool) -> asyncio.Future[CommandOutcome]:
        """Confirm a command; ``payload`` is the device's answer. With ``failed`` push sends the command again."""
        return self._ask(
            lambda end: DeviceRequest(device, position, end, fetches=False, payload=payload, failed=failed)
        )

    def _ask(self, made: Callable[[Callable[[CommandOutcome], None]], DeviceRequest]) -> asyncio.Future[CommandOutcome]:
        future: asyncio.Future[CommandOutcome] = self._loop.create_future()

        def finish(outcome: CommandOutcome) -> None:
            if not future.done():
                future.set_result(outcome)

        def end(outcome: CommandOutcome) -> None:
            with suppress(RuntimeError):  # the loop is closed, so no client waits
                self._loop.call_soon_threadsafe(finish, outcome)

        request = made(end)
        future.add_done_callback(lambda one: self._post(partial(self._leave, request)) if one.cancelled() else None)
        self._post(partial(self._take, request))
        return future

    def _post(self, event: Callable[[], None]) -> None:
        self._inbox.append(event)
        self._context.poller.wake()

    # --- stopping ---

    def stop(self, deadline: float) -> None:
        """End all requests, and have each session give its sign of absence, until ``deadline`` (monotonic)."""
        self._deadline = deadline
        self._stopping.set()
        self._context.poller.wake()

    def join(self) -> None:
        """Wait until the sessions are closed."""
        self._thread.join()

    # --- on the thread of the links ---

    def _run(self) -> None:
        try:
            while not (self._stopping.is_set() and (not self._sessions or time.monotonic() >= self._deadline)):
                self._turn()
        finally:
            for session in self._sessions.values():
                session.close()
            self._context.poller.close()

    def _turn(self) -> None:
        while self._inbox:
            self._inbox.popleft()()
        if self._stopping.is_set():
            for session in self._sessions.values():
                session.end_requests(CommandOutcome(unavailable="the service is stopping"))
                session.leave()
        now = time.monotonic()
        due = min([session.tick(now) for session in self._sessions.values()], default=now + _TURN_S)
        links = [one.link for one in self._sessions.values() if one.ready]
        links += [one.link for one in self._sessions.values() if not one.ready][:_DIALS]
        turn_all(links, self._context.poller, max(0.0, due - now), self._close_ended)

    def _leave(self, request: DeviceRequest) -> None:
        if request.device in self._sessions:
            self._sessions[request.device].left(request)

    def _take(self, request: DeviceRequest) -> None:
        stopping, session = self._stopping.is_set(), self._sessions.get(request.device)
        if session is None and not stopping and len(self._sessions) < self._context.fetch.devices:
            status = status_of(self._context.settings.push.presence.rules, request.device)
            if status is not None:
                given = self._given.get(request.device) or deque(maxlen=_GIVEN)
                self._given.put(request.device, given)
                session = self._sessions[request.device] = DeviceSession(request.device, status, self._context, given)
        if session is None or stopping:
            why = "the service is stopping" if stopping else "too many devices fetch commands"
            request.end(CommandOutcome(unavailable=why))
        else:
            session.ask(request)

    def _close_ended(self, _now: float) -> None:
        size = sum(one.held.size for one in self._sessions.values())
        while size > _HELD_BYTES:
            largest = max(self._sessions.values(), key=lambda one: -1 if one.ended else one.held.size)
            size -= largest.held.size
            largest.fail(CommandOutcome(unavailable="too many commands wait for confirmations"))
        for device, session in list(self._sessions.items()):
            if session.ended:
                del self._sessions[device]
                session.close()
