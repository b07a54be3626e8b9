"""An intake for protocol handlers whose connections run on an event loop.

``await take(message)`` returns when Pulsar has stored the message. The loop's thread calls everything; Pulsar's threads
only wake it. The handler decides the answer to its peer.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bridge.contract import P_DEAD_REASON
from bridge.errors import TransientError
from bridge.intake.flow import Reading
from bridge.mqtt.types import Message

if TYPE_CHECKING:
    from bridge.protocols.handler import Service

__all__ = ["AwaitedIntake", "Outcome", "SaturatedError"]


class SaturatedError(TransientError):
    """Raised when a message is refused: too many are in flight, or the service stops."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one message. It is stored as a reading if no field is set.

    ``left_out`` is the reason why it is not a reading and was not written. ``dead_letter`` is the reason why it is
    stored as a dead letter. ``unknown`` means that the wait ended before Pulsar confirmed it, so it may be stored.
    """

    left_out: str | None = None
    dead_letter: str | None = None
    unknown: bool = False


class _Waiting(Reading):
    """A message and the future of its caller."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Outcome], arrived: float) -> None:
        super().__init__(0, 0, arrived)
        self.future = future


class AwaitedIntake:
    """Stores messages for the protocol objects on ``service.loop``. ``limit`` bounds the messages in flight; without
    ``presence`` a message is not a sign that its device gets commands now.

    An accepted message stays in flight until Pulsar stores it, even if its caller no longer waits.
    """

    def __init__(self, service: Service, *, link: str, protocol: str, limit: int, presence: bool = True) -> None:
        self._loop = service.loop
        self._intake = service.intake(link=link, protocol=protocol, limit=limit, wake=self._wake, presence=presence)
        self._waiting: dict[_Waiting, None] = {}  # in order of arrival
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._next_watch = 0.0
        self._closed = False
        self.stalled_for = 0.0
        """How long the oldest message in flight has waited at the last turn, in seconds. Any thread may read it."""
        self._idle = asyncio.Event()
        self._idle.set()

    def take(self, message: Message) -> asyncio.Future[Outcome]:
        """Accept a message, in order; the future returns its outcome once it is stored.

        Raises SaturatedError if it is not accepted. Cancelling the future changes nothing for the message.
        """
        if self._closed:
            raise SaturatedError("the service is stopping")
        if self._intake.full:
            raise SaturatedError(f"{self._intake.in_flight} messages are in flight")
        reading = _Waiting(self._loop.create_future(), time.monotonic())
        left_out = self._intake.take(reading, message)
        self._wake_here()
        if left_out is not None:
            reading.future.set_result(Outcome(left_out=left_out))
        else:
            self._waiting[reading] = None
            self._idle.clear()
        return reading.future

    # --- on the loop ---

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop is closed, so no caller waits
            self._loop.call_soon_threadsafe(self._wake_here)

    def _wake_here(self) -> None:
        if not self._scheduled:  # all messages of one loop iteration share a turn
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        now = time.monotonic()
        for reading in self._intake.turn(now):
            assert isinstance(reading, _Waiting)
            del self._waiting[reading]
            dead = reading.properties[P_DEAD_REASON] if self._intake.is_dead_letter(reading) else None
            if not reading.future.done():
                reading.future.set_result(Outcome(dead_letter=dead))
        oldest = next(iter(self._waiting)).arrived if self._waiting else None
        self.stalled_for = 0.0 if oldest is None else now - oldest
        if now >= self._next_watch:
            self._next_watch = now + 1.0
            self._intake.watch(now, oldest)
        if not self._waiting:
            self._idle.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._closed or self._waiting:
            self._timer = self._loop.call_later(self._intake.next_in(now), self._wake_here)

    # --- stopping ---

    async def drain(self, deadline: float) -> int:
        """Accept no more and wait until all is stored, or ``deadline`` (monotonic). Returns the number not stored."""
        self._closed = True
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._idle.wait(), max(0.0, deadline - time.monotonic()))
        left = len(self._waiting)
        for reading in self._waiting:
            if not reading.future.done():
                reading.future.set_result(Outcome(unknown=True))
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return left
