"""Checks every few seconds that Pulsar answers, if an endpoint shows the process's health.

A process without traffic does not notice an outage, and an open connection to a Pulsar that hangs looks healthy. The
check is a look-up over a separate connection. So it neither waits for the process's messages nor delays its end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import structlog

from bridge.errors import PulsebridgeError
from bridge.health import Health
from bridge.pulsar.client import PulsarClient
from bridge.settings import Settings

__all__ = ["Watch", "watching_pulsar"]

log = structlog.get_logger("health")

_PATIENCE: Final = 3
"""Pulsar counts as unreachable after this many intervals without an answer."""
_LOOKUP_S: Final = 5.0


class Watch:
    """Calls ``ask`` every ``every_s`` seconds in its own thread. ``failed`` gets its PulsebridgeErrors.

    Once ``over`` is true, it makes no further calls, so that the process's end does not wait for an answer. The end of
    the block waits for the current call, at most ``patience_s`` seconds.
    """

    def __init__(
        self,
        name: str,
        every_s: float,
        ask: Callable[[], object],
        *,
        over: Callable[[], bool],
        answered: Callable[[], None] = lambda: None,
        failed: Callable[[PulsebridgeError], None] = lambda _error: None,
        patience_s: float | None = None,
    ) -> None:
        self._every_s = every_s
        self._ask = ask
        self._over = over
        self._answered = answered
        self._failed = failed
        self._patience_s = patience_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopping.set()
        self._thread.join(self._patience_s)

    def _run(self) -> None:
        while not self._stopping.is_set() and not self._over():
            try:
                self._ask()
            except PulsebridgeError as e:
                self._failed(e)
            else:
                self._answered()
            self._stopping.wait(self._every_s)


@contextmanager
def watching_pulsar(settings: Settings, health: Health, topic: str) -> Iterator[None]:
    """Update the part ``pulsar`` of ``health`` while the block runs, by looking up ``topic``.

    The topic must exist, because a look-up can create it (H11). If no endpoint shows the health, nothing is asked.
    """
    if settings.metrics.port == 0:
        yield
        return
    part = health.part("pulsar", answers_within_s=_PATIENCE * settings.metrics.probe_interval)

    def answered() -> None:
        part.turned(time.monotonic())
        part.ready()

    def failed(error: PulsebridgeError) -> None:
        log.debug("Pulsar does not answer", why=error.what)
        part.waits(error.what)

    quick = settings.pulsar.model_copy(update={"operation_timeout": _LOOKUP_S})
    client = PulsarClient(quick)
    watch = Watch(
        "pulsar-watch",
        settings.metrics.probe_interval,
        lambda: client.partitions(topic),
        over=lambda: health.ending,
        answered=answered,
        failed=failed,
    )
    try:
        with watch:
            yield
    finally:
        with suppress(PulsebridgeError):  # closed either way
            client.close()
