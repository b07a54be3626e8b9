"""The command ``pulsebridge commands send``: commands to devices and groups, without Spark."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bridge.contract import FAILURES
from bridge.contract.commands import MAX_COMMAND_BYTES
from bridge.errors import EXIT_INTERRUPTED, ConfigError, PulsebridgeError
from pulsebridge.cli.completion import complete_device
from pulsebridge.cli.options import ConfigOption, SetOption, settings_from
from pulsebridge.output.text import json_text, text_of

if TYPE_CHECKING:
    from bridge.contract import Receipt
    from bridge.pulsar.command_writer import StoredCommand

__all__ = ["send"]


def send(
    config: ConfigOption = None,
    sets: SetOption = None,
    device: Annotated[
        str | None,
        typer.Option(help="Device that gets the command.", show_default=False, autocompletion=complete_device),
    ] = None,
    group: Annotated[str | None, typer.Option(help="Group whose members get it.", show_default=False)] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            help="MQTT topic of the command; {device} in it is the device. Of groups the default is push.groups.topic.",
            show_default=False,
        ),
    ] = None,
    payload: Annotated[str | None, typer.Option(metavar="TEXT|@FILE", help="Its payload.", show_default=False)] = None,
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
    given = {
        "device": device,
        "group": group,
        "mqtt_topic": topic,
        "payload": None if payload is None else _payload(payload),
        "qos": qos,
        "retain": retain or None,
        "broadcast": broadcast or None,
        "expires_in": expires_in,
        "link": link,
    }
    prefix = f"send-{uuid.uuid4().hex[:12]}" if command_id is None else command_id
    defaults = {name: value for name, value in given.items() if value is not None}
    source = CommandSource(defaults, prefix, settings.max_name_bytes)
    timeout_s = _seconds(timeout)
    commands = iter([source.single()]) if lines is None else source.file(lines)
    awaited, failed, count = Awaited(), False, 0
    with PulsarClient(settings.pulsar) as client:
        since = ReceiptsSince(client) if wait else None
        try:
            for one in CommandWriter(client).write(commands):
                count += 1
                typer.echo(_stored(one, as_json=as_json))
                if since is not None:
                    awaited.add(
                        one.command.command_id,
                        device=getattr(one.command, "device", ""),
                        group=getattr(one.command, "group", ""),
                    )
            for receipt in () if since is None else since.read(awaited, timeout_s):
                typer.echo(_receipt(receipt, as_json=as_json))
                failed |= receipt.state in FAILURES
        except (PulsebridgeError, KeyboardInterrupt) as e:
            again = f"send the same with --id {prefix} again: a device gets one command for an id"
            if isinstance(e, KeyboardInterrupt):
                typer.echo(f"interrupted: {count} stored; {again}", err=True)
                raise typer.Exit(EXIT_INTERRUPTED) from e
            raise type(e)(f"{e.what}; {count} stored", remedy="; then ".join(filter(None, (e.remedy, again)))) from e
    if awaited:
        typer.echo(
            f"{len(awaited)} without a receipt from push after {timeout}: see `pulsebridge commands show ID`", err=True
        )
    if failed or awaited:
        raise typer.Exit(1)


def _payload(text: str) -> bytes | str:
    """Return the payload of an option. A longer one than a command may have is cut, and is not valid then."""
    if not text.startswith("@"):
        return text
    try:
        with Path(text[1:]).open("rb") as file:
            return file.read(MAX_COMMAND_BYTES + 1)
    except OSError as e:
        raise ConfigError(f"--payload {text}: {e.strerror}", remedy="give @ and the path of a file") from e


def _seconds(timeout: str) -> float:
    from bridge.settings.units import Duration

    try:
        return Duration(timeout)
    except ValueError as e:
        raise ConfigError(f"--timeout {timeout}: {e}") from e


def _stored(one: StoredCommand, *, as_json: bool) -> str:
    command = one.command
    device, group = getattr(command, "device", ""), getattr(command, "group", "")
    if not as_json:
        return text_of([f"{command.command_id} for {device or f'group {group}'}: stored at {one.position}"])
    shown = {"command_id": command.command_id, "device": device, "group": group, "mqtt_topic": command.mqtt_topic}
    return json_text(shown | {"state": "stored", "position": one.position})


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
