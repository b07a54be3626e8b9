"""Opens and closes the producers of partitions in a small pool, because both wait for Pulsar.

A producer costs memory here and at the broker, and partitions come and go with the devices' topics (H10). A producer
without unconfirmed messages may be closed at any time. The next message opens another one and waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, TypeVar

from bridge.contract import base_topic
from bridge.errors import DeniedError, PulsebridgeError, RefusedError, TerminatedError
from bridge.intake.background import Background
from bridge.intake.flow import Flow, Producer
from bridge.pulsar.client import PulsarClient
from bridge.pulsar.sending import close_quietly

__all__ = ["AT_ONCE", "REST_S", "ProducerOpener", "to_close"]

T = TypeVar("T")

REST_S: Final = 5.0
"""How long a surplus producer stays open after its last message, in seconds. If more partitions are in use at once,
opening a producer for each message would cost more than the producers."""
AT_ONCE: Final = 100
"""Most producers that are closed at once; the others follow."""


def to_close(idle: Iterable[tuple[float, T]], opened: int, now: float, idle_s: float, most: int) -> list[T]:
    """Return the producers to close, least recently used first.

    ``idle`` are those without unconfirmed messages, each with the time of its last message; ``opened`` counts all.
    They close after ``idle_s`` seconds without a message, or earlier beyond ``most`` open ones.
    """
    surplus = opened - most
    rest_s = min(REST_S, idle_s)
    found: list[T] = []
    for used, one in sorted(idle, key=lambda each: each[0]):
        if len(found) == AT_ONCE or now - used < (rest_s if len(found) < surplus else idle_s):
            break
        found.append(one)
    return found


class ProducerOpener:
    """Opens producers in a pool. The loop calls ``opened`` with the producer, or the error instead of one.

    The pool calls ``recreate`` with a topic that may not exist.
    """

    def __init__(
        self,
        client: PulsarClient,
        background: Background,
        *,
        max_pending: int,
        recreate: Callable[[str], None],
        opened: Callable[[Flow, Producer | PulsebridgeError, float], None],
    ) -> None:
        self.background = background
        self.closing = False
        """Whether idle producers are being closed."""
        self.ending = False
        """Set before ``close``, so that no producer is opened."""
        self._client = client
        self._max_pending = max_pending
        self._recreate = recreate
        self._opened = opened

    def reopen(self, flow: Flow, now: float) -> bool:
        """Replace the producer of a flow if that is possible now. Returns whether it begins."""
        if flow.opening or now < flow.retry_at or self.ending or flow.phase == "blocking":
            return False
        flow.opening = True
        old, flow.producer = flow.producer, None
        self.background.submit(self._open, flow, old)
        return True

    def _open(self, flow: Flow, old: Producer | None) -> None:
        if old is not None:
            close_quietly(old)
            flow.identity = old.successor()
        result: Producer | PulsebridgeError
        try:
            if flow.dead_letters:
                result = self._client.chunking_producer(flow.partition, max_pending=self._max_pending)
            else:
                result = self._client.batch_producer(flow.partition, flow.identity)
        except PulsebridgeError as e:
            if isinstance(e, RefusedError) and not isinstance(e, (DeniedError, TerminatedError)):
                self._recreate(base_topic(flow.partition))
            result = e
        self.background.report(partial(self._opened, flow, result))

    def close_idle(self, old: list[Producer]) -> None:
        """Close producers that nothing uses."""

        def work() -> None:
            for producer in old:
                if not self.ending:  # else closing the connection closes them
                    close_quietly(producer)
            self.closing = False

        self.closing = True
        self.background.submit(work)

    def close(self, flows: Iterable[Flow]) -> None:
        """Wait for the pool, then close every producer. It waits for Pulsar."""
        self.background.close()
        for flow in flows:
            if flow.producer is not None:
                close_quietly(flow.producer)
