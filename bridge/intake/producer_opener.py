"""Opens and closes the producers of partitions in a small pool, because both wait for Pulsar."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from bridge.contract import base_topic
from bridge.errors import DeniedError, PulsebridgeError, RefusedError, TerminatedError
from bridge.intake.flow import Flow, Producer
from bridge.pulsar.client import PulsarClient
from bridge.pulsar.sending import close_quietly

__all__ = ["ProducerOpener"]


class ProducerOpener:
    """Opens producers in ``pool`` and queues them in ``opened``, with the error instead of a producer that failed.

    The pool calls ``recreate`` with a topic that may not exist, and ``wake`` after each result.
    """

    def __init__(
        self,
        client: PulsarClient,
        pool: ThreadPoolExecutor,
        *,
        max_pending: int,
        recreate: Callable[[str], None],
        wake: Callable[[], None],
    ) -> None:
        self.pool = pool
        self.opened: deque[tuple[Flow, Producer | None, PulsebridgeError | None]] = deque()
        self.closing = False
        """Whether idle producers are being closed."""
        self.ending = False
        """Set before ``close``, so that no producer is opened."""
        self._client = client
        self._max_pending = max_pending
        self._recreate = recreate
        self._wake = wake

    def reopen(self, flow: Flow, now: float) -> bool:
        """Replace the producer of a flow if that is possible now. Returns whether it begins."""
        if flow.opening or now < flow.retry_at or self.ending or flow.phase == "blocking":
            return False
        flow.opening = True
        old, flow.producer = flow.producer, None
        self.pool.submit(self._open, flow, old)
        return True

    def _open(self, flow: Flow, old: Producer | None) -> None:
        if old is not None:
            close_quietly(old)
            flow.identity = old.successor()
        producer: Producer
        try:
            if flow.dead_letters:
                producer = self._client.chunking_producer(flow.partition, max_pending=self._max_pending)
            else:
                producer = self._client.batch_producer(flow.partition, flow.identity)
        except PulsebridgeError as e:
            if isinstance(e, RefusedError) and not isinstance(e, (DeniedError, TerminatedError)):
                self._recreate(base_topic(flow.partition))
            self.opened.append((flow, None, e))
        else:
            self.opened.append((flow, producer, None))
        self._wake()

    def close_idle(self, old: list[Producer]) -> None:
        """Close producers that nothing uses."""

        def work() -> None:
            for producer in old:
                if not self.ending:  # else closing the connection closes them
                    close_quietly(producer)
            self.closing = False

        self.closing = True
        self.pool.submit(work)

    def close(self, flows: Iterable[Flow]) -> None:
        """Wait for the pool, then close every producer. It waits for Pulsar."""
        self.pool.shutdown(wait=True, cancel_futures=True)
        for flow in flows:
            if flow.producer is not None:
                close_quietly(flow.producer)
