"""Writes failed commands again, each for its own device, at the end of its queue.

1. What became of the command and of its copies is read: receipts, log, dead letters.
2. The new copy is written to the partition of its device; its id follows from the old one's.
3. Pulsar's receipt.

Died between 2 and 3: run again, it finds the copy pending and writes none. Two at the same time write the same id
twice, of which push gives the device one.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from bridge.commands import Command, encode_command
from bridge.contract import partition_name
from bridge.devices.history import Family, Refusal
from bridge.devices.reading import PushTopics
from bridge.errors import TransientError
from bridge.killpoints import reach
from bridge.pulsar_client import OK, Producer, our_errors
from bridge.pulsar_errors import as_our_error

__all__ = ["Resent", "resend"]

_CONFIRM_S: Final = 60.0


@dataclass(slots=True)
class Resent:
    """What was written, or would be, and what was not."""

    written: list[Command] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)


def resend(
    topics: PushTopics,
    families: Iterable[Family],
    decide: Callable[[Family], Command | Refusal],
    *,
    dry_run: bool = False,
) -> Resent:
    """Write what ``decide`` makes of each family, in their order, each with Pulsar's receipt before the next.

    Raises TransientError when Pulsar does not store one: those before it are written.
    """
    done = Resent()
    producers: dict[int, Producer] = {}
    try:
        for family in families:
            command = decide(family)
            if isinstance(command, Refusal):
                done.refused.append(command)
                continue
            if not dry_run:
                _write(topics, producers, command)
            done.written.append(command)
    finally:
        for producer in producers.values():
            with our_errors("closing a producer"):
                producer.close()
    return done


def _write(topics: PushTopics, producers: dict[int, Producer], command: Command) -> None:
    partition = topics.partition_of(command.device)
    name = partition_name(topics.commands, partition)
    producer: Any = producers.get(partition)
    if producer is None:
        producer = producers[partition] = topics.client.producer(name, batching=False)
    answers: queue.SimpleQueue[object] = queue.SimpleQueue()
    with our_errors(f"writing {command.command_id} to {name}"):
        producer.send_async(
            command.payload,
            lambda result, _id: answers.put(result),
            properties=encode_command(command),
            partition_key=command.device,
        )
    try:
        result = answers.get(timeout=_CONFIRM_S)
    except queue.Empty:
        raise TransientError(
            f"Pulsar does not confirm {command.command_id} on {name}",
            remedy="see that Pulsar is up and run it again: what it has written it does not write twice",
        ) from None
    if result != OK:
        raise as_our_error(result, f"writing {command.command_id} to {name}")
    reach("resend_after_write")
