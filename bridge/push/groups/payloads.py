"""Reads payloads of group commands from Pulsar, one after the other, on a thread of its own: the cache's shell.

Client and thread are made when the first payload is asked for, so that a process without group commands has neither.
While Pulsar is away it is tried again, and the pushes wait; only what Pulsar does not have any more counts as gone.
What it has and does not give (its bookies are away) waits behind the others, which may lie elsewhere.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from bridge.contract import GROUP_COMMANDS_TOPIC, partition_name
from bridge.contract.commands import CommandPosition
from bridge.errors import PulsebridgeError
from bridge.pulsar.client import PulsarClient
from bridge.push.groups.cache import PayloadCache, Told
from bridge.push.groups.metrics import GroupMetrics
from bridge.push.position_reader import NothingComes, PositionReader
from bridge.push.threads import telling
from bridge.settings import Settings

__all__ = ["PayloadCame", "Payloads"]

log = structlog.get_logger("push")

_RETRY_S: Final = (0.2, 5.0)
_NEAR: Final = 4
"""Payloads may be large: few of them wait in a reader's queue."""


@dataclass(frozen=True, slots=True)
class PayloadCame:
    """A payload that a partition waits for; None when Pulsar does not have it any more."""

    position: CommandPosition
    payload: bytes | None


class Payloads:
    """The payloads of one push process. ``ask`` may be called from any thread."""

    def __init__(self, settings: Settings, metrics: GroupMetrics, failed: Callable[[Exception], None]) -> None:
        """``failed`` is called on the thread of this when it ends before ``close``."""
        self._failed = failed
        self._settings = settings
        self._topic = partition_name(settings.pulsar.system_topic(GROUP_COMMANDS_TOPIC), 0)
        self._metrics = metrics
        self._cache = PayloadCache(
            settings.push.groups.cache_size,
            self._order,
            metrics.hits.inc,
            metrics.misses.inc,
        )
        self._wanted: queue.SimpleQueue[CommandPosition | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def ask(self, position: CommandPosition, told: Told) -> bytes | None:
        """Return the payload of the group command at ``position``, or None; then ``told`` is called once, later."""
        return self._cache.ask(position, told)

    def close(self) -> None:
        """End the thread; who still waits is told nothing."""
        self._closing.set()
        self._wanted.put(None)
        if self._thread is not None:
            self._thread.join()

    def _order(self, position: CommandPosition) -> None:
        self._wanted.put(position)
        with self._lock:
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(
                    target=telling(self._run, self._failed), name="push-payloads", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        pulsar = self._settings.pulsar
        with PulsarClient(pulsar) as client:
            reader = PositionReader(client, self._topic, 0, over=self._closing.is_set, near=_NEAR)
            while (position := self._wanted.get()) is not None and not self._closing.is_set():
                try:
                    payload = self._read(reader, position)
                except NothingComes:
                    self._wanted.put(position)
                    continue
                if self._closing.is_set():
                    break
                self._cache.fetched(position, payload)
                self._metrics.kept.set(self._cache.size)
            reader.close()

    def _read(self, reader: PositionReader, position: CommandPosition) -> bytes | None:
        """Raises NothingComes when a new reader gets nothing, and Pulsar says that there is something."""
        wait = _RETRY_S[0]
        while not self._closing.is_set():
            opened = reader.opened
            try:
                message = reader.read(position)
            except NothingComes:
                fresh = reader.opened > opened
                reader.close()
                if not fresh:  # what it stood on may be gone, and not the message
                    continue
                log.warning(
                    "Pulsar has the payload of a group command and does not give it, its members wait: see that the "
                    "bookies are up; where its ledger is lost for good, run pulsar-admin topics truncate on the topic",
                    position=str(position),
                    topic=self._topic,
                )
                raise
            except PulsebridgeError as e:
                log.debug("the payload of a group command is read again", position=str(position), why=str(e))
                self._closing.wait(wait)
                wait = min(2 * wait, _RETRY_S[1])
                continue
            if message is None and not self._closing.is_set():
                log.error(
                    "the payload of a group command is not in Pulsar any more, see the receipts: let nobody clear the "
                    "backlog of pulsebridge-groups",
                    position=str(position),
                )
            return None if message is None else message.payload
        return None
