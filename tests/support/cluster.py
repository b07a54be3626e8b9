"""Disturbances of a Pulsar cluster, and how long Pulsar's own client and a sink stand still under them."""

from __future__ import annotations

import math
import os
import random
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from types import TracebackType
from typing import Final

import pulsar

from bridge.contract import partition_name
from bridge.errors import PulsebridgeError, TransientError
from bridge.pulsar.admin import PulsarAdmin, rest_path
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.local.cluster import BROKERS, LocalCluster
from sinks.messages import PulsarMessage
from sinks.options import PulsarTarget
from sinks.writer import TaskWriter
from tests.support.endpoint import Endpoint
from tests.support.reading_back import patiently, quiet, read_back
from tests.support.waiting import patient

__all__ = [
    "VICTIMS",
    "Growth",
    "OwnClient",
    "SinkRows",
    "disturb",
    "frozen",
    "killed",
    "longest_gap",
    "move",
    "owner_of",
    "partitions_of",
    "unload",
]

VICTIMS: Final = ("broker", "frozen broker", "bookie", "proxy", "unload")


def owner_of(cluster: LocalCluster, admin: PulsarAdmin, topic: str) -> str:
    """Return the name of the broker that owns a partition."""
    return cluster.name_of(patiently(admin.owner, topic))


def partitions_of(topic: str, count: int) -> list[str]:
    """Return the names of the partitions of a topic."""
    return [partition_name(topic, number) for number in range(count)]


def move(cluster: LocalCluster, admin: PulsarAdmin, broker: str) -> None:
    """Unload all topics of our namespaces, half of them to ``broker`` and half to another one."""
    other = BROKERS[BROKERS.index(broker) - 1]
    for namespace in admin.settings.all_namespaces:
        bounds = patiently(admin.request, "GET", f"/namespaces/{namespace}/bundles")["boundaries"]
        for number, (low, high) in enumerate(pairwise(bounds)):
            to = cluster.admin_url_of((broker, other)[number % 2]).removeprefix("http://")
            path = f"/namespaces/{namespace}/{low}_{high}/unload?destinationBroker={to}"
            patiently(admin.request, "PUT", path)


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
    """Pulsar's own client, which writes to each partition of topics of its own ten times a second, and reads it.

    ``longest_gap`` and ``longest_way`` tell how long it stood still: the yardstick of the bridge in the same run.
    """

    def __init__(self, settings: PulsarSettings, topics: Sequence[str], partitions: int = 8) -> None:
        """``partitions`` of each topic: enough that any broker owns some."""
        self._settings = settings
        self._topics = topics
        self._count = partitions
        self._stored: defaultdict[str, dict[int, float]] = defaultdict(dict)
        self._received: defaultdict[str, dict[int, float]] = defaultdict(dict)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="own-client", daemon=True)

    def __enter__(self) -> OwnClient:
        self._client = pulsar.Client(self._settings.service_url, logger=quiet(), operation_timeout_seconds=30)
        with PulsarAdmin(self._settings) as admin:
            for topic in self._topics:
                admin.create_partitioned(topic, self._count)
        names = [name for topic in self._topics for name in partitions_of(topic, self._count)]
        self._producers = {
            name: self._client.create_producer(name, send_timeout_millis=0, max_pending_messages=100_000)
            for name in names
        }
        for name in names:
            self._client.subscribe(name, "own", message_listener=partial(self._got, self._received[name]))
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
        while not self._stopping.wait(0.1):
            number += 1
            for name, producer in self._producers.items():
                producer.send_async(b"%d" % number, partial(self._noted, self._stored[name], number))

    def _noted(self, stored: dict[int, float], number: int, result: object, _id: object) -> None:
        if result == pulsar.Result.Ok:
            stored[number] = time.time()

    def _got(self, received: dict[int, float], consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        received.setdefault(int(message.data()), time.time())
        consumer.acknowledge(message)

    def flows_since(self, at: float) -> bool:
        """Whether each partition has stored something since, and each consumer has received what was stored before."""
        stored = [list(times.copy().values()) for times in self._stored.values()]
        return all(times and times[-1] > at for times in stored) and self.longest_way(0.0, at) < math.inf

    def longest_gap(self, since: float, until: float) -> float:
        """Return the longest time, in seconds, in which a partition stored nothing."""
        return max(longest_gap(list(times.copy().values()), since, until) for times in self._stored.values())

    def longest_way(self, since: float, until: float) -> float:
        """Return the longest time, in seconds, from receipt to consumer, of what was stored from ``since`` to ``until``."""
        return max(
            (
                self._received[name].get(number, math.inf) - at
                for name, stored in self._stored.items()
                for number, at in stored.copy().items()
                if since <= at < until
            ),
            default=0.0,
        )


class SinkRows:
    """Tasks of a sink, one after the other; one that fails is repeated, as Spark does."""

    def __init__(self, settings: PulsarSettings, topic: str) -> None:
        self.times: list[float] = []
        """When each task was done."""
        self._settings = settings
        self._topic = topic
        self._written = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sink", daemon=True)

    def __enter__(self) -> SinkRows:
        with PulsarAdmin(self._settings) as admin:
            admin.create_partitioned(self._topic, 4)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Write no further task."""
        self._stopping.set()
        self._thread.join(patient(60))

    def _run(self) -> None:
        writer = TaskWriter(PulsarTarget(self._settings))
        while not self._stopping.wait(0.1):
            rows = [
                PulsarMessage(row, self._topic, b"%d" % (self._written + row), f"d{row % 5}", {}) for row in range(20)
            ]
            with suppress(TransientError):
                writer.write(rows, self._topic)
                self._written += len(rows)
                self.times.append(time.time())
        writer.retire()

    def account(self) -> str:
        """Return what is missing or out of order of the tasks that were done, empty if nothing is."""
        assert not self._thread.is_alive()
        found: dict[str, dict[int, None]] = defaultdict(dict)
        for _, message in read_back(self._settings, self._topic):
            if int(message.data()) < self._written:  # else of a task that was not done
                found[message.partition_key()].setdefault(int(message.data()))
        missing = self._written - sum(map(len, found.values()))
        disordered = [key for key, numbers in found.items() if list(numbers) != sorted(numbers)]
        return f"{missing} rows missing" * bool(missing) + f"disordered: {disordered}" * bool(disordered)


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
