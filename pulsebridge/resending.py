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

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from bridge.contract import partition_name
from bridge.contract.commands import Command, command_problem, encode_command
from bridge.dead_letters.history import Family, Refusal
from bridge.errors import TransientError
from bridge.inspect.devices.reading import PushTopics
from bridge.killpoints import reach
from bridge.pulsar.client import our_errors
from bridge.pulsar.sending import PartitionWriters, Receipts

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
    writers = PartitionWriters(topics.client)
    try:
        for family in families:
            command = decide(family)
            if isinstance(command, Command):
                command = _whole(family.root, command, topics)
            if isinstance(command, Refusal):
                resent.refused.append(command)
                continue
            if not dry_run:
                _write(topics, writers, command)
            resent.written.append(command)
    finally:
        writers.close()
    return resent


def _whole(first: str, command: Command, topics: PushTopics) -> Command | Refusal:
    """Return a command with its payload, ready to store, or the reason against it."""
    if command.ref is not None:
        payload = topics.group_payload(command.ref)
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


def _write(topics: PushTopics, writers: PartitionWriters, command: Command) -> None:
    name = partition_name(topics.commands, topics.partition_of(command.device))
    operation = f"writing {command.command_id} to {name}"
    receipts = Receipts()
    with our_errors(operation):
        writers.of(name).send_async(
            command.payload, receipts.of(0), properties=encode_command(command), partition_key=command.device
        )
    confirmed = receipts.wait(_CONFIRM_S)
    error = receipts.error(0, operation)
    if error is not None and not confirmed:
        raise TransientError(
            error.what, remedy="check that Pulsar runs, then repeat the command: it writes no stored command twice"
        )
    if error is not None:
        raise error
    reach("resend_after_write")
