"""Resend of failed commands: writes copies to the end of the devices' queues.

1. The caller reads the history of the command and of its copies: receipts, log, dead letters.
2. For a member of a group it reads the payload of the group command. Pulsar keeps that payload only while the group
   command is open, so the copy is a plain command that contains the payload.
3. It writes the new copy to the partition of the device. The copy's id follows from the old id.
4. It waits for Pulsar's receipt.

If the process dies between 3 and 4, the next run finds the copy pending and writes none. Two runs at the same time
write the same id twice; push delivers one of the two to the device.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from bridge.contract import C_ID, GROUP_COMMANDS_TOPIC, partition_name
from bridge.contract.commands import Command, GroupRef, command_problem, encode_command
from bridge.errors import TransientError
from bridge.inspect.devices.history import Family, Refusal
from bridge.inspect.devices.reading import PushTopics
from bridge.killpoints import reach
from bridge.pulsar.client import OK, Producer, our_errors
from bridge.pulsar.errors import as_our_error
from bridge.push.position_reader import PositionReader

__all__ = ["Resent", "resend"]

_CONFIRM_S: Final = 60.0


@dataclass(slots=True)
class Resent:
    """The commands that were written, or would be in a dry run, and the refused ones."""

    written: list[Command] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)


def resend(
    topics: PushTopics,
    families: Iterable[Family],
    decide: Callable[[Family], Command | Refusal],
    *,
    dry_run: bool = False,
) -> Resent:
    """Write the command that ``decide`` returns for each family, in order; wait for each receipt before the next write.

    Raises TransientError if Pulsar does not store a command: the commands before it are written.
    """
    resent = Resent()
    payloads = _GroupPayloads(topics)
    producers: dict[int, Producer] = {}
    try:
        for family in families:
            command = decide(family)
            if isinstance(command, Command):
                command = _whole(family.root, command, payloads)
            if isinstance(command, Refusal):
                resent.refused.append(command)
                continue
            if not dry_run:
                _write(topics, producers, command)
            resent.written.append(command)
    finally:
        payloads.close()
        for producer in producers.values():
            with our_errors("closing a producer"):
                producer.close()
    return resent


class _GroupPayloads:
    """Payloads of group commands; the last one is cached, because the members of a group are resent together."""

    def __init__(self, topics: PushTopics) -> None:
        self._topics = topics
        self._reader: PositionReader | None = None
        self._last: tuple[GroupRef | None, bytes | None] = None, None

    def read(self, ref: GroupRef) -> bytes | None:
        """Return the payload, None if Pulsar has deleted it."""
        if self._last[0] != ref:
            self._last = ref, self._read(ref)
        return self._last[1]

    def _read(self, ref: GroupRef) -> bytes | None:
        if self._reader is None:
            if not self._topics.count(GROUP_COMMANDS_TOPIC):
                return None
            name = partition_name(self._topics.full_name(GROUP_COMMANDS_TOPIC), 0)
            self._reader = PositionReader(self._topics.client, name, 0, near=1)
        message = self._reader.read(ref.position)
        return message.payload if message is not None and message.properties.get(C_ID) == ref.command_id else None

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


def _whole(first: str, command: Command, payloads: _GroupPayloads) -> Command | Refusal:
    """Return a command with its payload, ready to store, or the reason against it."""
    if command.ref is not None:
        payload = payloads.read(command.ref)
        if payload is None:
            return Refusal(
                first,
                f"it was written for the group {command.ref.group}, and the payload of {command.ref.command_id} is not "
                "in Pulsar any more",
                "write a new command with a new id",
            )
        command = replace(command, payload=payload, ref=None)
    problem = command_problem(command)
    if problem is not None:
        return Refusal(first, f"it is not a valid command in this release: {problem}", "write a new command")
    return command


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
            remedy="check that Pulsar runs, then repeat the command: it writes no stored command twice",
        ) from None
    if result != OK:
        raise as_our_error(result, f"writing {command.command_id} to {name}")
    reach("resend_after_write")
