"""Reads payloads of group commands from Pulsar, one after the other, on a thread of its own: the cache's shell.

The client is made when the first payload is asked for, so that a process without group commands has none. While Pulsar is
unreachable it is tried again, and the pushes wait; only a message that Pulsar does not have any more counts as lost. What
it has and does not give (its bookies are away) waits behind the others, which may lie elsewhere.
"""

from __future__ import annotations

import queue
import threading
from collections import OrderedDict
from collections.abc import Callable
from itertools import chain
from typing import Final, NamedTuple

import structlog

from bridge.contract import GROUP_COMMANDS_TOPIC, partition_name
from bridge.contract.commands import CommandPosition
from bridge.errors import PulsebridgeError
from bridge.pulsar.client import PulsarClient
from bridge.pulsar.position_reader import NothingComes, PositionReader
from bridge.push.metrics import PushMetrics
from bridge.settings import Settings
from bridge.threads import start_thread

__all__ = ["Deliver", "PayloadCache", "PayloadCame", "Payloads"]

Deliver = Callable[[CommandPosition, bytes | None], None]
"""Called with a payload that was waited for, None when Pulsar does not have it any more. On the fetching thread."""


class PayloadCache:
    """Payloads by the position of their group command."""

    def __init__(
        self,
        limit: int,
        fetch: Callable[[CommandPosition], None],
        hit: Callable[[], None] = lambda: None,
        missed: Callable[[], None] = lambda: None,
    ) -> None:
        """``limit`` is in bytes. ``fetch`` orders a read, without blocking; ``hit`` and ``missed`` count the requests."""
        self._limit = limit
        self._hit = hit
        self._missed = missed
        self._fetch = fetch
        self._lock = threading.Lock()
        self._kept: OrderedDict[CommandPosition, bytes] = OrderedDict()
        self._waiting: dict[CommandPosition, list[Deliver]] = {}
        self._bytes = 0

    @property
    def size(self) -> int:
        """What is kept, in bytes; never above the limit."""
        return self._bytes

    def ask(self, position: CommandPosition, deliver: Deliver) -> bytes | None:
        """Return the payload, or None; then ``deliver`` is called once, later."""
        with self._lock:
            payload = self._kept.get(position)
            if payload is not None:
                self._hit()
                self._kept.move_to_end(position)
                return payload
            waiting = self._waiting.get(position)
            if waiting is not None:
                self._hit()
                waiting.append(deliver)
                return None
            self._missed()
            self._waiting[position] = [deliver]
        self._fetch(position)
        return None

    def fetched(self, position: CommandPosition, payload: bytes | None) -> None:
        """A payload was read, None when Pulsar does not have it: deliver it to all that wait for it."""
        with self._lock:
            waiting = self._waiting.pop(position, [])
            if payload is not None and position not in self._kept and len(payload) <= self._limit:
                self._kept[position] = payload
                self._bytes += len(payload)
                while self._bytes > self._limit:
                    _, gone = self._kept.popitem(last=False)
                    self._bytes -= len(gone)
        for deliver in waiting:
            deliver(position, payload)


log = structlog.get_logger("push")

_RETRY_S: Final = (0.2, 5.0)
_NEAR: Final = 4  # payloads may be large: few of them wait in a reader's queue


class PayloadCame(NamedTuple):
    """A payload that a partition waits for; None when Pulsar does not have it any more."""

    position: CommandPosition
    payload: bytes | None


class Payloads:
    """The payloads of one push process. ``ask`` may be called from any thread."""

    def __init__(self, settings: Settings, metrics: PushMetrics, failed: Callable[[Exception], None]) -> None:
        """``failed`` is called on the thread of this when it ends before ``close``."""
        self._settings = settings
        self._wanted: queue.SimpleQueue[CommandPosition | None] = queue.SimpleQueue()
        self._topic = partition_name(settings.pulsar.system_topic(GROUP_COMMANDS_TOPIC), 0)
        self._metrics = metrics
        self._cache = PayloadCache(
            settings.push.groups.cache_size,
            self._wanted.put,
            metrics.counters["cache_hits"].inc,
            metrics.counters["cache_misses"].inc,
        )
        self.ask = self._cache.ask
        self._closing = threading.Event()
        self._thread = start_thread("push-payloads", self._run, failed)

    def close(self) -> None:
        """End the thread; what is still waited for is not delivered."""
        self._closing.set()
        self._wanted.put(None)
        self._thread.join()

    def _run(self) -> None:
        first = self._wanted.get()
        if first is None:
            return
        with PulsarClient(self._settings.pulsar) as client:
            reader = PositionReader(client, self._topic, 0, over=self._closing.is_set, near=_NEAR)
            for position in chain([first], iter(self._wanted.get, None)):
                try:
                    payload = self._read(reader, position)
                except NothingComes:
                    self._wanted.put(position)
                    continue
                if self._closing.is_set():
                    break
                self._cache.fetched(position, payload)
                self._metrics.gauges["cache_bytes"].set(self._cache.size)
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
                if not fresh:  # its former position may be trimmed, and not the message
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
                    "the payload of a group command is not in Pulsar any more, see the receipts: never clear the "
                    "backlog of pulsebridge-groups",
                    position=str(position),
                )
            return None if message is None else message.payload
        return None
