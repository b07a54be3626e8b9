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
from typing import TYPE_CHECKING, Final, NamedTuple

from bridge.contract.names import name_problem
from bridge.errors import ConfigError
from bridge.mqtt.turns import turn_all
from bridge.poller import Poller
from bridge.protocols.commands import CommandOutcome
from bridge.protocols.device_session import Confirmation, DeviceSession, Fetch, SessionContext, subscribed_topics
from bridge.routing.templates import Filter
from bridge.settings.fetch import FetchSettings, status_of
from bridge.threads import start_thread

if TYPE_CHECKING:
    from bridge.protocols.handler import Service

__all__ = ["AwaitedCommands"]

_TURN_S: Final = 1.0
_DIALS: Final = 16
"""Sessions that connect at the same time, because each dials in a thread of its own."""


class _Left(NamedTuple):
    """The client of a request is gone."""

    request: Fetch | Confirmation


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
        self._inbox: deque[Fetch | Confirmation | _Left] = deque()
        self._sessions: dict[str, DeviceSession] = {}
        self._stopping = threading.Event()
        self._deadline = 0.0
        self._thread = start_thread("device-sessions", self._run, service.failed)

    # --- on the event loop ---

    def topics(self, device: str) -> tuple[Filter, ...] | None:
        """Return the topics of a device's commands; a credential that may fetch them covers all of them. None if no device
        has this name.
        """
        rules, limit = self._context.settings.push.presence.rules, self._context.settings.max_name_bytes
        if name_problem(device, limit) is not None or set("+#\0") & set(device) or status_of(rules, device) is None:
            return None
        try:
            return tuple(Filter.parse(one) for one in subscribed_topics(device, self._context.fetch))
        except ValueError:
            return None

    def fetch(self, device: str, after: str, wait_s: float) -> asyncio.Future[CommandOutcome]:
        """Return the device's next command that is not confirmed, once there is one.

        ``after`` is the position of the last command that the device has had, empty without one: it confirms that
        command, without an answer. A newer request of the device ends this one. ``device`` is a name with ``topics``.
        """
        wait_s = min(wait_s, self._context.fetch.max_wait)
        return self._ask(lambda end: Fetch(device, after, wait_s, end))

    def confirm(self, device: str, position: str, payload: bytes, *, failed: bool) -> asyncio.Future[CommandOutcome]:
        """Confirm a command; ``payload`` is the device's answer. With ``failed`` push sends the command again."""
        return self._ask(lambda end: Confirmation(device, position, payload, failed, end))

    def _ask(
        self, request_of: Callable[[Callable[[CommandOutcome], None]], Fetch | Confirmation]
    ) -> asyncio.Future[CommandOutcome]:
        future: asyncio.Future[CommandOutcome] = self._loop.create_future()

        def finish(outcome: CommandOutcome) -> None:
            if not future.done():
                future.set_result(outcome)

        def end(outcome: CommandOutcome) -> None:
            with suppress(RuntimeError):  # the loop is closed, so no client waits
                self._loop.call_soon_threadsafe(finish, outcome)

        request = request_of(end)
        future.add_done_callback(lambda one: self._post(_Left(request)) if one.cancelled() else None)
        self._post(request)
        return future

    def _post(self, event: Fetch | Confirmation | _Left) -> None:
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
            self._take(self._inbox.popleft())
        if self._stopping.is_set():
            for session in self._sessions.values():
                session.end_requests(CommandOutcome(unavailable="the service is stopping"))
                session.leave()
        now = time.monotonic()
        due = min([session.tick(now) for session in self._sessions.values()], default=now + _TURN_S)
        turn_all([one.link for one in self._turning()], self._context.poller, max(0.0, due - now), self._close_ended)

    def _turning(self) -> list[DeviceSession]:
        """Return the sessions that have a turn: all that are connected, and some of the others."""
        dials = 0
        found = []
        for session in self._sessions.values():
            dials += not session.ready
            if session.ready or dials <= _DIALS:
                found.append(session)
        return found

    def _take(self, event: Fetch | Confirmation | _Left) -> None:
        if isinstance(event, _Left):
            if event.request.device in self._sessions:
                self._sessions[event.request.device].left(event.request)
            return
        session = self._sessions.get(event.device)
        if session is None and len(self._sessions) < self._context.fetch.devices:
            status = status_of(self._context.settings.push.presence.rules, event.device)
            if status is not None:
                session = self._sessions[event.device] = DeviceSession(event.device, status, self._context)
        if session is None or self._stopping.is_set():
            why = "the service is stopping" if self._stopping.is_set() else "too many devices fetch commands"
            event.end(CommandOutcome(unavailable=why))
        else:
            session.ask(event)

    def _close_ended(self, _now: float) -> None:
        size = sum(one.held.size for one in self._sessions.values())
        while size > self._context.fetch.held_size:
            largest = max(self._sessions.values(), key=lambda one: -1 if one.ended else one.held.size)
            size -= largest.held.size
            largest.fail(CommandOutcome(unavailable="too many commands wait for confirmations"))
        for device, session in list(self._sessions.items()):
            if session.ended:
                del self._sessions[device]
                session.close()
