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

__all__ = ["watching", "watching_pulsar"]

log = structlog.get_logger("health")

_PATIENCE: Final = 3
"""Pulsar counts as unreachable after this many intervals without an answer."""
_LOOKUP_S: Final = 5.0
_END_S: Final = 1.0
"""A stop has five seconds for all that follows the drain, and a Pulsar that hangs answers none of them."""


@contextmanager
def watching(
    name: str,
    every_s: float,
    ask: Callable[[], object],
    *,
    over: Callable[[], bool],
    failed: Callable[[PulsebridgeError], None] = lambda _error: None,
    patience_s: float | None = _END_S,
) -> Iterator[None]:
    """Call ``ask`` every ``every_s`` seconds in its own thread while the block runs. ``failed`` gets its PulsebridgeErrors.

    Once ``over`` is true, there are no further calls, so that the process's end does not wait for an answer. The end of
    the block waits for the current call, at most ``patience_s`` seconds, or without a limit for None.
    """
    stopping = threading.Event()

    def run() -> None:
        while not stopping.is_set() and not over():
            try:
                ask()
            except PulsebridgeError as e:
                failed(e)
            stopping.wait(every_s)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(patience_s)


@contextmanager
def watching_pulsar(settings: Settings, health: Health, topic: str) -> Iterator[None]:
    """Update the part ``pulsar`` of ``health`` while the block runs, by looking up ``topic``.

    The topic must exist, because a look-up can create it (H11). If no endpoint shows the health, nothing is asked.
    """
    if settings.metrics.port == 0:
        yield
        return
    interval_s = settings.metrics.probe_interval
    part = health.part("pulsar", answers_within_s=_PATIENCE * interval_s)
    client = PulsarClient(settings.pulsar.model_copy(update={"operation_timeout": _LOOKUP_S}))

    def ask() -> None:
        client.partitions(topic)
        part.turned(time.monotonic())
        part.ready()

    def failed(error: PulsebridgeError) -> None:
        log.debug("Pulsar does not answer", why=error.what)
        part.waits(error.what)

    try:
        # A stop does not wait for an answer: a closed client ends the look-up.
        with watching("pulsar-watch", interval_s, ask, over=lambda: health.ending, failed=failed):
            yield
    finally:
        with suppress(PulsebridgeError):  # closed either way
            client.close()
