"""An intake for handlers whose connections live on an event loop: ``await store(message)`` ends when Pulsar has it.

It belongs to that loop: everything is called on its thread, except what Pulsar's threads do to wake it. What a
protocol answers to its peer in each case is decided by the handler.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from bridge.contract import P_DEAD_REASON
from bridge.errors import TransientError
from bridge.ingest.intake import Intake
from bridge.ingest.lanes import Reading
from bridge.mqtt.types import Message

__all__ = ["AwaitedIntake", "Outcome", "SaturatedError"]


class SaturatedError(TransientError):
    """Raised when a message is not taken, because too many are on their way into Pulsar, or the service stops."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a message.

    ``left_out`` is the reason why it is no reading and was not written, ``dead_letter`` the reason why it is stored
    among the dead letters, ``unknown`` that the wait ended before Pulsar confirmed it, so that it may be stored or
    not; with none of them it is stored as a reading.
    """

    left_out: str | None = None
    dead_letter: str | None = None
    unknown: bool = False


class _Waiting(Reading):
    """A message, and who waits for it."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Outcome], arrived: float) -> None:
        super().__init__(0, 0, arrived)
        self.future = future


class _Service(Protocol):
    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    def intake(self, *, link: str, protocol: str, limit: int, wake: Callable[[], None]) -> Intake: ...


class AwaitedIntake:
    """A way into Pulsar for the protocol objects on ``service.loop``. ``limit`` bounds the messages in flight.

    A message that was taken stays in flight until Pulsar has it, whether or not somebody still waits for it.
    """

    def __init__(self, service: _Service, *, link: str, protocol: str, limit: int) -> None:
        self._loop = service.loop
        self._intake = service.intake(link=link, protocol=protocol, limit=limit, wake=self._wake)
        self._waiting: dict[_Waiting, None] = {}  # in order of arrival
        self._turning = False
        self._timer: asyncio.TimerHandle | None = None
        self._next_watch = 0.0
        self._closed = False
        self._stalled_for = 0.0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def in_flight(self) -> int:
        """Messages that are not known to be stored."""
        return self._intake.in_flight

    @property
    def stalled_for(self) -> float:
        """For how long the oldest message in flight has waited, in seconds, as of the last turn. From any thread."""
        return self._stalled_for

    def take(self, message: Message) -> asyncio.Future[Outcome]:
        """Take a message now, in order; the future tells what became of it, once it is stored.

        Raises SaturatedError when it is not taken. Cancelling the future changes nothing for the message.
        """
        if self._closed:
            raise SaturatedError("the service is stopping")
        if self._intake.full:
            raise SaturatedError(f"{self._intake.in_flight} messages are on their way into Pulsar")
        reading = _Waiting(self._loop.create_future(), time.monotonic())
        left_out = self._intake.take(reading, message)
        self._wake_here()
        if left_out is not None:
            reading.future.set_result(Outcome(left_out=left_out))
        else:
            self._waiting[reading] = None
            self._idle.clear()
        return reading.future

    async def store(self, message: Message) -> Outcome:
        """Take a message and wait until it is stored. Raises SaturatedError when it is not taken."""
        return await self.take(message)

    # --- turns ---

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._wake_here)

    def _wake_here(self) -> None:
        if not self._turning:  # several messages of one round of the loop share a turn
            self._turning = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turning = False
        now = time.monotonic()
        for reading in self._intake.turn(now):
            assert isinstance(reading, _Waiting)
            del self._waiting[reading]
            dead = reading.properties[P_DEAD_REASON] if self._intake.is_dead_letter(reading) else None
            if not reading.future.done():
                reading.future.set_result(Outcome(dead_letter=dead))
        oldest = next(iter(self._waiting)).arrived if self._waiting else None
        self._stalled_for = 0.0 if oldest is None else now - oldest
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

    # --- ending ---

    async def drain(self, deadline: float) -> int:
        """Take nothing more and wait until all is stored, or ``deadline`` (monotonic). Returns what is not stored."""
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
