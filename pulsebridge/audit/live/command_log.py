"""Reads commands, receipts, dead letters and alerts from Pulsar, and which commands still wait."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from bridge.contract import (
    ALERTS_TOPIC,
    C_DEVICE,
    C_EMITTED,
    C_ID,
    COMMANDS_TOPIC,
    DEAD_LETTERS_TOPIC,
    P_DEAD_NOTE,
    P_DEVICE,
    P_INGEST,
    P_RULE,
    RECEIPTS_TOPIC,
    Receipt,
    full_envelope,
)
from bridge.contract.commands import CommandPosition, is_broadcaster
from bridge.errors import ContractError, TerminalError
from bridge.inspect.devices.reading import PushTopics
from bridge.inspect.devices.view import PartitionView
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import Message, PulsarClient, key_of, properties_of
from bridge.pulsar.messages import position_of
from pulsebridge.audit.live.commands import Commands, Emitted, Letter, Receipted, Row
from pulsebridge.audit.live.log import NumberFields, window

__all__ = ["read_commands", "read_letters", "waits"]

_BEFORE_US: Final = 600_000_000
"""Time before the window that is read as well: an alert in the window may have its command before it."""


def read_letters(
    client: PulsarClient, since_us: int, fields: NumberFields
) -> tuple[list[Letter], set[tuple[str, str, int]]]:
    """Return the dead letters of commands, and (route, device, number) of the devices' messages among the letters."""
    letters, numbers = [], set()
    for _, message in _messages(client, DEAD_LETTERS_TOPIC, since_us):
        found = properties_of(message) or {}
        if P_DEAD_NOTE in found:
            continue
        if C_ID in found:
            letters.append(Letter(found[C_ID], found.get(C_DEVICE, ""), message.publish_timestamp() * 1000))
        elif P_INGEST in found:
            with suppress(ContractError):
                full = full_envelope(found)
                rule, device = full.get(P_RULE) or "", full.get(P_DEVICE) or key_of(message) or ""
                number = fields.number(rule, message.data(), found)
                if number is not None:
                    numbers.add((rule, device, number))
    return letters, numbers


def read_commands(client: PulsarClient, since_us: int, until_us: int, letters: list[Letter]) -> Commands:
    """Return the records about commands, from the begin of the window to now."""
    found = Commands(since_us, until_us, letters=letters)
    for number, message in _messages(client, COMMANDS_TOPIC, since_us):
        properties, us = properties_of(message) or {}, message.publish_timestamp() * 1000
        device, position = properties.get(C_DEVICE) or key_of(message) or "", position_of(message.message_id())
        if C_ID in properties:
            emitted = properties.get(C_EMITTED, "")
            us = int(emitted) if emitted.isdecimal() and len(emitted) < 17 else us
            found.emitted.append(Emitted(properties[C_ID], device, us, number, position, is_broadcaster(device)))
    for _, message in _messages(client, RECEIPTS_TOPIC, since_us):
        with suppress(ContractError):
            one = Receipt.decode(message.data())
            if one.device:
                us = message.publish_timestamp() * 1000
                found.receipts.append(
                    Receipted(one.command_id, one.device, one.state, us, one.emitted_at_us, one.group)
                )
    for _, message in _messages(client, ALERTS_TOPIC, since_us):
        with suppress(ValueError, KeyError, TypeError):
            body = json.loads(message.data())
            us = message.publish_timestamp() * 1000
            found.alerts.append(Row(str(body["command_id"]), str(body.get("to_device") or ""), us))
    return found


def _messages(client: PulsarClient, local: str, since_us: int) -> Iterator[tuple[int, Message]]:
    """Yield partition and message from ``since_us`` to now: receipts and letters follow their commands."""
    topic, until_us = client.settings.system_topic(local), time.time_ns() // 1000
    since_us -= _BEFORE_US
    for number, partition in enumerate(client.partitions(topic)):
        for message in window(client, partition, since_us, until_us):
            yield number, message


def waits(client: PulsarClient, admin: PulsarAdmin) -> Callable[[Emitted], bool]:
    """Return whether a command still waits: it is after its device's cursor, and parked or not acknowledged.

    Each partition's records are read once, at the first question.
    """
    try:
        topics = PushTopics(client, admin)
    except TerminalError:
        return lambda _: True
    views: dict[int, tuple[PartitionView, Callable[[CommandPosition], bool]]] = {}

    def ask(command: Emitted) -> bool:
        number, at = command.partition, CommandPosition(*command.position)
        if number not in views:
            acknowledged = topics.acknowledged(number)
            views[number] = (
                topics.records(number),
                lambda p: acknowledged is not None and acknowledged.covers(p.ledger, p.entry),
            )
        view, covers = views[number]
        if at <= view.cursor(command.device):
            return at in view.parked(command.device)
        return at in view.parked(command.device) or not covers(at)

    return ask
