"""Writes many commands fast: batches of the project's own producer, a partition each, and waits until all are stored."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from bridge.contract import COMMANDS_TOPIC, partition_name
from bridge.contract.commands import Command, encode_command
from bridge.contract.partitioning import partition_of
from bridge.pulsar.client import PulsarClient
from bridge.pulsar.wire.batches import head_of
from bridge.pulsar.wire.commands import WireError
from bridge.settings import Settings

__all__ = ["write_many"]

_TURN = 1000
_UNDER_WAY = 50


@dataclass(frozen=True, slots=True)
class _Encoded:
    payload: bytes
    head: bytes
    event_ms: int = 0


def write_many(settings: Settings, commands: Iterable[Command], *, timeout_s: float = 300) -> float:
    """Write commands, in order; returns how long it took, in seconds, from the first to Pulsar's last receipt.

    Raises AssertionError when Pulsar refuses one, or does not answer in time.
    """
    begin = time.monotonic()
    room = threading.Semaphore(_UNDER_WAY)
    failed: list[WireError] = []

    def stored(error: WireError | None) -> None:
        if error is not None:
            failed.append(error)
        room.release()

    topic = settings.pulsar.system_topic(COMMANDS_TOPIC)
    count = settings.pulsar.command_partitions
    with PulsarClient(settings.pulsar) as client:
        producers = [client.batch_producer(partition_name(topic, n)) for n in range(count)]
        for turn in _turns(iter(commands)):
            of: dict[int, list[_Encoded]] = defaultdict(list)
            for one in turn:
                of[partition_of(one.device, count)].append(
                    _Encoded(one.payload, head_of(one.device, encode_command(one)))
                )
            for partition, messages in of.items():
                assert room.acquire(timeout=timeout_s), "Pulsar does not answer"
                assert not failed, failed[0]
                producers[partition].send(messages, stored)
        for _ in range(_UNDER_WAY):
            assert room.acquire(timeout=timeout_s), "Pulsar does not answer"
        assert not failed, failed[0]
        for producer in producers:
            producer.close()
    return time.monotonic() - begin


def _turns(commands: Iterator[Command]) -> Iterator[list[Command]]:
    while turn := list(islice(commands, _TURN)):
        yield turn
