"""The command ``pulsebridge commands send``: commands to devices and groups, without Spark."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from bridge.contract import FAILURES
from bridge.contract.commands import MAX_COMMAND_BYTES
from bridge.errors import EXIT_INTERRUPTED, ConfigError, PulsebridgeError
from bridge.settings.units import Duration
from pulsebridge.cli.options import ConfigOption, SetOption, settings_from
from pulsebridge.output.text import json_text, text_of

if TYPE_CHECKING:
    from bridge.contract import Receipt
    from bridge.contract.commands import Command
    from bridge.contract.groups import GroupCommand
    from bridge.inspect.awaited import Awaited
    from bridge.pulsar.command_writer import CommandWriter, StoredCommand

__all__ = ["send"]

_CLOSE_S: Final = 5.0
_MOST_AWAITED: Final = 100_000
"""Each awaited command is kept in memory."""


def send(
    config: ConfigOption = None,
    sets: SetOption = None,
    device: Annotated[str | None, typer.Option(help="Device that gets the command.", show_default=False)] = None,
    group: Annotated[str | None, typer.Option(help="Group whose members get it.", show_default=False)] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            help="MQTT topic of the command; {device} in it is the device. Of groups the default is push.groups.topic.",
            show_default=False,
        ),
    ] = None,
    payload: Annotated[
        str | None, typer.Option(metavar="TEXT|@FILE|-", help="Its payload; -: from stdin.", show_default=False)
    ] = None,
    command_id: Annotated[
        str | None,
        typer.Option("--id", help="Its id; with --lines the begin of the ids: ID-LINE.", show_default="a new one"),
    ] = None,
    qos: Annotated[int | None, typer.Option(metavar="1|2", help="QoS of its delivery.", show_default="1")] = None,
    retain: Annotated[bool, typer.Option("--retain", help="Let the MQTT broker retain it.")] = False,
    broadcast: Annotated[
        bool, typer.Option("--broadcast", help="With --group: publish it once for all members.")
    ] = False,
    expires_in: Annotated[
        str | None, typer.Option(metavar="AGE", help="Expiry: 30s, 15m, 2h, 3d.", show_default="never")
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(help="Link to its MQTT broker, for a device that push has never seen.", show_default=False),
    ] = None,
    lines: Annotated[
        Path | None,
        typer.Option(metavar="FILE|-", help="Many commands: a JSON object in each line.", show_default=False),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the receipts of push.")] = False,
    timeout: Annotated[str, typer.Option(metavar="AGE", help="Longest time to wait for them.")] = "60s",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object in each line, for programs.")] = False,
) -> None:
    """Write commands to Pulsar, which push delivers; print id and position of each one when Pulsar has stored it.

    A command sent twice with the same id is harmless: a device gets one command for an id. Push remembers at least the
    last 256 ids of each device (push.limits.remembered_ids).

    The fields of a line are device or group, mqtt_topic, payload or payload_base64, command_id, qos, retain, broadcast,
    expires_in, cause and link; the options are the values that a line lacks. A file is checked as a whole before the
    first command is sent. Lines from a pipe are sent as they arrive; those before an invalid one are stored, and the
    error says how many. After an error or an interruption send the same lines with the same --id again.

    With --wait the exit code is 1 if a command failed, or has no receipt in time. A command to a group ends with the
    last of its members.

    Examples:

      pulsebridge commands send --device press-7 --topic devices/press-7/commands --payload '{"reset": true}' --wait

      pulsebridge commands send --group presses --payload @update.bin --id update-12 --expires-in 2d

      pulsebridge commands send --group presses --payload @update.bin --broadcast --wait --timeout 5m

      pulsebridge commands send --lines commands.jsonl --topic 'devices/{device}/commands' --id night-7 --json
    """
    from bridge.inspect.awaited import Awaited, ReceiptsSince
    from bridge.pulsar.client import PulsarClient
    from bridge.pulsar.command_writer import CommandWriter
    from pulsebridge.command_lines import CommandSource

    settings = settings_from(config, sets)
    given: dict[str, Any] = {
        "device": device,
        "group": group,
        "mqtt_topic": topic,
        "qos": qos,
        "expires_in": expires_in,
        "link": link,
    }
    given |= {"broadcast": broadcast or None, "retain": retain or None}
    given |= {"payload": None if payload is None else _payload(payload, lines)}
    prefix = f"send-{uuid.uuid4().hex[:12]}" if command_id is None else command_id
    defaults = {name: value for name, value in given.items() if value is not None}
    source = CommandSource(defaults, prefix, settings.max_name_bytes, _MOST_AWAITED if wait else None)
    timeout_s = _seconds(timeout)
    commands: Iterable[Command | GroupCommand | None]
    commands = [source.single()] if lines is None else source.file(lines)
    awaited = Awaited()
    with PulsarClient(settings.pulsar) as client:
        since = ReceiptsSince(client) if wait else None
        writer = CommandWriter(client)

        def stored(one: StoredCommand) -> None:
            typer.echo(_stored(one, as_json=as_json))
            if since is not None:
                awaited.add(one.command)

        _write(writer, commands, stored, prefix)
        if lines is not None:
            typer.echo(_count(writer), err=True)
        failed = since is not None and _await(since.read(awaited, timeout_s), awaited, as_json=as_json)
    if awaited:
        typer.echo(
            f"{len(awaited)} without a receipt from push after {timeout}: see `pulsebridge commands show ID`", err=True
        )
    if failed or awaited:
        raise typer.Exit(1)


def _payload(text: str, lines: Path | None) -> bytes | str:
    """Return the payload of an option. A longer one than a command may have is cut, and is not valid then."""
    if text == "-":
        if str(lines) == "-":
            raise ConfigError("--payload - and --lines -: both read stdin", remedy="give one of them as a file")
        return sys.stdin.buffer.read(MAX_COMMAND_BYTES + 1)
    if not text.startswith("@"):
        return text
    try:
        with Path(text[1:]).open("rb") as file:
            return file.read(MAX_COMMAND_BYTES + 1)
    except OSError as e:
        raise ConfigError(f"--payload {text}: {e.strerror}", remedy="give @ and the path of a file") from e


def _seconds(timeout: str) -> float:
    try:
        return Duration(timeout)
    except ValueError as e:
        raise ConfigError(f"--timeout {timeout}: {e}") from e


def _write(
    writer: CommandWriter,
    commands: Iterable[Command | GroupCommand | None],
    stored: Callable[[StoredCommand], None],
    prefix: str,
) -> None:
    """Write the commands. After an error or an interruption it also says how many are stored."""
    try:
        for one in writer.write(commands):
            stored(one)
    except (PulsebridgeError, KeyboardInterrupt) as e:
        for one in writer.remaining(_CLOSE_S):
            stored(one)
        again = f"send the same with --id {prefix} again: a device gets one command for an id"
        if isinstance(e, KeyboardInterrupt):
            _interrupted(f"{_count(writer)}; {again}")
        remedy = f"{e.remedy}; then {again}" if e.remedy else again
        raise type(e)(f"{e.what}; {_count(writer)}", remedy=remedy) from e


def _await(receipts: Iterator[Receipt], awaited: Awaited, *, as_json: bool) -> bool:
    """Print the receipts. Returns whether a command failed."""
    failed = False
    try:
        for receipt in receipts:
            typer.echo(_receipt(receipt, as_json=as_json))
            failed |= receipt.state in FAILURES
    except KeyboardInterrupt:
        _interrupted(f"all are stored, {len(awaited)} of them without a receipt from push")
    return failed


def _interrupted(how_far: str) -> NoReturn:
    typer.echo(text_of([f"interrupted: {how_far}"]), err=True)
    raise typer.Exit(EXIT_INTERRUPTED)


def _count(writer: CommandWriter) -> str:
    unknown = f", {writer.unconfirmed} without a receipt from Pulsar" if writer.unconfirmed else ""
    return f"{writer.stored} stored{unknown}"


def _stored(one: StoredCommand, *, as_json: bool) -> str:
    command, position = one.command, one.position.encode(one.partition)
    device, group = getattr(command, "device", ""), getattr(command, "group", "")
    if not as_json:
        return text_of([f"{command.command_id} for {device or f'group {group}'}: stored at {position}"])
    shown = {"command_id": command.command_id, "device": device, "group": group, "mqtt_topic": command.mqtt_topic}
    return json_text(shown | {"state": "stored", "position": position})


def _receipt(receipt: Receipt, *, as_json: bool) -> str:
    from pulsebridge.output.devices import receipt_json

    shown = receipt_json(receipt)
    if as_json:
        return json_text(shown)
    whose = receipt.device or f"group {receipt.group}"
    state = f"expanded to {receipt.members} devices" if receipt.state == "expanded" else receipt.state
    more = receipt.reason or shown["answer"]
    return text_of(
        [f"{receipt.group_command_id or receipt.command_id} for {whose}: {state}" + f", {more}" * bool(more)]
    )
