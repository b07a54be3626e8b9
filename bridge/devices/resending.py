"""Writes failed commands again, each for its own device, at the end of its queue.

1. What became of the command and of its copies is read: receipts, log, dead letters.
2. For a member of a group the payload of the group command is read: Pulsar keeps it while the command is open, which it
   may be no more when the copy is pushed. So the copy is a plain command, with a payload of its own.
3. The new copy is written to the partition of its device; its id follows from the old one's.
4. Pulsar's receipt.

Died between 3 and 4: run again, it finds the copy pending and writes none. Two at the same time write the same id
twice, of which push gives the device one.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from bridge.commands import Command, GroupRef, command_problem, encode_command
from bridge.contract import C_ID, GROUP_COMMANDS_TOPIC, partition_name
from bridge.devices.history import Family, Refusal
from bridge.devices.reading import PushTopics
from bridge.errors import TransientError
from bridge.killpoints import reach
from bridge.pulsar_client import OK, Producer, our_errors
from bridge.pulsar_errors import as_our_error
from bridge.push.position_reader import PositionReader

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
    payloads = _GroupPayloads(topics)
    producers: dict[int, Producer] = {}
    try:
        for family in families:
            command = decide(family)
            if isinstance(command, Command):
                command = _whole(family.root, command, payloads)
            if isinstance(command, Refusal):
                done.refused.append(command)
                continue
            if not dry_run:
                _write(topics, producers, command)
            done.written.append(command)
    finally:
        payloads.close()
        for producer in producers.values():
            with our_errors("closing a producer"):
                producer.close()
    return done


class _GroupPayloads:
    """Payloads of group commands; the last one is kept, for members of a group are sent again together."""

    def __init__(self, topics: PushTopics) -> None:
        self._topics = topics
        self._reader: PositionReader | None = None
        self._last: tuple[GroupRef | None, bytes | None] = None, None

    def read(self, ref: GroupRef) -> bytes | None:
        """Return the payload, None when Pulsar does not have it any more."""
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
    """Return a command with its payload, as it can be stored, or why it cannot."""
    if command.ref is not None:
        payload = payloads.read(command.ref)
        if payload is None:
            return Refusal(
                first,
                f"it was written for the group {command.ref.group}, and the payload of {command.ref.command_id} is not "
                "in Pulsar any more",
                "write the command anew, under an id of its own",
            )
        command = replace(command, payload=payload, ref=None)
    problem = command_problem(command)
    if problem is not None:
        return Refusal(first, f"it is no command by the rules of this release: {problem}", "write it anew")
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
            remedy="see that Pulsar is up and run it again: what it has written it does not write twice",
        ) from None
    if result != OK:
        raise as_our_error(result, f"writing {command.command_id} to {name}")
    reach("resend_after_write")
