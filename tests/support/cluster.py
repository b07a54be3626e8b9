"""Disturbances of a Pulsar cluster, and how long Pulsar's own client stands still under them."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from types import TracebackType
from typing import Final

import pulsar

from bridge.contract import partition_name
from bridge.errors import PulsebridgeError
from bridge.pulsar.admin import PulsarAdmin, rest_path
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.local.cluster import LocalCluster
from tests.support.endpoint import Endpoint
from tests.support.reading_back import quiet

__all__ = ["VICTIMS", "Growth", "OwnClient", "disturb", "frozen", "killed", "longest_gap", "owner_of", "unload"]

VICTIMS: Final = ("broker", "frozen broker", "bookie", "proxy", "unload")


def owner_of(cluster: LocalCluster, admin: PulsarAdmin, topic: str) -> str:
    """Return the name of the broker that owns a partition."""
    return cluster.name_of(admin.owner(topic))


@contextmanager
def frozen(cluster: LocalCluster, name: str) -> Iterator[None]:
    """Stop a process for the time of the block, as a machine that hangs."""
    pid = cluster.servers[name].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def killed(cluster: LocalCluster, name: str) -> Iterator[None]:
    """Kill a process, and start it again after the block."""
    cluster.kill(name)
    try:
        yield
    finally:
        cluster.restart(name)


def unload(admin: PulsarAdmin, topic: str, partitions: int) -> None:
    """Unload all partitions of a topic: each gets an owner again, perhaps another one."""
    for number in range(partitions):
        with suppress(PulsebridgeError):  # its owner is being killed
            admin.request("PUT", f"/{rest_path(partition_name(topic, number))}/unload")


def disturb(cluster: LocalCluster, settings: PulsarSettings, topic: str, chance: random.Random) -> str:
    """Do one thing at random to the cluster, of which it recovers. Returns what it was."""
    kind = chance.choice(VICTIMS)
    if kind == "unload":
        with PulsarAdmin(settings) as admin:
            unload(admin, topic, admin.partition_count(topic))
        return kind
    name = "proxy" if kind == "proxy" else f"{kind.removeprefix('frozen ')}-{chance.randrange(3)}"
    if kind.startswith("frozen"):
        with frozen(cluster, name):
            threading.Event().wait(chance.uniform(2, 20))  # how long it hangs: nothing is waited for
    else:
        with killed(cluster, name):
            threading.Event().wait(chance.uniform(0, 15))
    return f"{name} {'frozen' if kind.startswith('frozen') else 'killed'}"


class OwnClient:
    """Pulsar's own client, which writes to each partition of a topic of its own every 20 ms, and reads it.

    ``longest`` and ``longest_way`` tell how long it stood still: the yardstick of the bridge in the same run.
    """

    def __init__(self, settings: PulsarSettings, topic: str, partitions: int = 4) -> None:
        self._settings = settings
        self.topic = topic
        self.partitions = partitions
        self._stored: list[dict[int, float]] = [{} for _ in range(partitions)]
        self._received: list[dict[int, float]] = [{} for _ in range(partitions)]
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="own-client", daemon=True)

    def __enter__(self) -> OwnClient:
        with PulsarAdmin(self._settings) as admin:
            admin.create_partitioned(self.topic, self.partitions)
        self._client = pulsar.Client(self._settings.service_url, logger=quiet(), operation_timeout_seconds=30)
        self._producers = [
            self._client.create_producer(
                partition_name(self.topic, number), send_timeout_millis=0, max_pending_messages=100_000
            )
            for number in range(self.partitions)
        ]
        for number, received in enumerate(self._received):
            name = partition_name(self.topic, number)
            self._client.subscribe(name, "own", message_listener=partial(self._got, received))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join(30)
        self._client.close()

    def _run(self) -> None:
        number = 0
        while not self._stopping.wait(0.02):
            number += 1
            for stored, producer in zip(self._stored, self._producers, strict=True):
                producer.send_async(b"%d" % number, partial(self._noted, stored, number))

    def _noted(self, stored: dict[int, float], number: int, result: object, _id: object) -> None:
        if result == pulsar.Result.Ok:
            stored[number] = time.time()

    def _got(self, received: dict[int, float], consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        received.setdefault(int(message.data()), time.time())
        consumer.acknowledge(message)

    def longest(self, since: float, until: float) -> float:
        """Return the longest time, in seconds, in which a partition stored nothing."""
        return max(longest_gap(list(times.values()), since, until) for times in self._stored)

    def longest_way(self, since: float, until: float) -> float:
        """Return the longest time, in seconds, from receipt to consumer, of what was stored from ``since`` to ``until``."""
        ways = [
            received.get(number, until) - at
            for stored, received in zip(self._stored, self._received, strict=True)
            for number, at in list(stored.items())
            if since <= at < until
        ]
        return max(ways, default=0.0)


class Growth:
    """The times at which a counter of a process grew, looked at every 50 ms."""

    def __init__(self, endpoint: Endpoint, counter: str) -> None:
        self._look = lambda: endpoint.total(counter)
        self.times: list[float] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="growth", daemon=True)

    def __enter__(self) -> Growth:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join(10)

    def _run(self) -> None:
        last = 0.0
        while not self._stopping.wait(0.05):
            with suppress(OSError):
                now = self._look()
                if now > last:
                    last = now
                    self.times.append(time.time())


def longest_gap(times: list[float], since: float, until: float) -> float:
    """Return the longest time between two of the sorted ``times`` from ``since`` to ``until``, both included."""
    within = [since, *(at for at in list(times) if since < at < until), until]
    return max(later - at for at, later in pairwise(within))
