"""Where a dead letter goes when it is replayed, and why some cannot be. Pure: it writes nothing."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from bridge.commands import decode_command
from bridge.contract import (
    C_ID,
    COMMANDS_TOPIC,
    DEAD_MALFORMED,
    GROUP_COMMANDS_TOPIC,
    P_COMMAND_TOPIC,
    P_DEAD_AT,
    P_DEAD_CUT,
    P_DEAD_KEY,
    P_DEAD_LENGTH,
    P_DEAD_REASON,
    P_DEAD_SHA256,
    P_DEAD_TOPIC,
    P_DEVICE,
    P_REPLAYED,
    P_RULE,
    P_VERSION,
    folded_envelope,
    full_envelope,
)
from bridge.dead_letters.records import DeadLetter
from bridge.envelope import message_of
from bridge.errors import ContractError
from bridge.groups import decode_group_command
from bridge.mapping import LeftOut, Mapper, NoRoute, PerMessage, ResumeAsked
from bridge.settings.pulsar import PulsarSettings

__all__ = ["Refusal", "Replay", "replay_of"]

_OF_DEATH = (P_DEAD_AT, P_DEAD_CUT, P_DEAD_KEY, P_DEAD_LENGTH, P_DEAD_REASON, P_DEAD_SHA256, P_DEAD_TOPIC)


@dataclass(frozen=True, slots=True)
class Replay:
    """A dead letter as the message that it was meant to be; ``pb.replayed`` marks it (its dead letter's id)."""

    letter: DeadLetter
    topic: str
    """Full name of the Pulsar topic, without partition."""
    key: str
    properties: dict[str, str]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A dead letter that cannot be replayed, and why."""

    letter: DeadLetter
    why: str


def replay_of(letter: DeadLetter, settings: PulsarSettings, mapper: Mapper | None = None) -> Replay | Refusal:
    """Return where the letter goes: to the topic that it was meant for, or where ``mapper`` sends it now."""
    if letter.problem:
        return Refusal(letter, f"{letter.reason}; show --out writes its payload to a file")
    if letter.lost_bytes:
        return Refusal(letter, f"{letter.lost_bytes} bytes of its payload were not kept: only its head is here")
    if letter.reason.startswith(DEAD_MALFORMED):
        return Refusal(letter, "its payload is the packet as it came: the device has to publish it again")
    if P_DEAD_CUT in letter.told:
        return Refusal(letter, "its envelope was too large and is cut: what it tells is not what was published")
    told = {name: value for name, value in letter.told.items() if name not in _OF_DEATH}
    if not told.get(P_DEVICE):
        told.pop(P_DEVICE, None)
    told[P_REPLAYED] = str(letter.id)
    if mapper is not None:
        return _remapped(letter, told, settings, mapper)
    if not letter.target:
        return Refusal(letter, "no rule named a topic for it: mend the rules and replay it with --remap")
    if letter.target == settings.system_topic(GROUP_COMMANDS_TOPIC):
        return _to_group(letter, told)
    problem = _topic_problem(letter.target, told, settings) or _command_problem(letter, told, settings)
    if problem:
        return Refusal(letter, problem)
    return Replay(letter, letter.target, letter.target_key, told)


def _topic_problem(topic: str, told: Mapping[str, str], settings: PulsarSettings) -> str:
    # The name comes out of a message: it must not lead to a topic that these settings do not own.
    if topic == settings.system_topic(COMMANDS_TOPIC):
        return "" if C_ID in told and P_VERSION in told else "it has not the shape of a command"
    if any(topic.startswith(f"persistent://{name}/") for name in settings.readings_namespaces):
        return ""
    return f"{topic} is neither a readings topic nor a commands topic of these settings"


def _to_group(letter: DeadLetter, told: dict[str, str]) -> Replay | Refusal:
    """A command to a group is a dead letter only where no member was given it: of an unknown group, or out of order."""
    told.pop(P_DEVICE, None)  # there it is the group's name
    try:
        command = decode_group_command(told, letter.payload)
    except ContractError as e:
        return Refusal(letter, f"it is no command to a group: {e.what}. Write it anew")
    return Replay(letter, letter.target, command.group, told)


def _command_problem(letter: DeadLetter, told: Mapping[str, str], settings: PulsarSettings) -> str:
    stood_there = letter.told.get(P_DEAD_TOPIC) != letter.target  # in a partition; sinks name the topic alone
    if letter.target != settings.system_topic(COMMANDS_TOPIC) or not stood_there:
        return ""
    try:
        command = decode_command(told, letter.payload)
    except ContractError:
        return ""  # push could not read it, so no cursor remembers its id: a later release may read it
    again = shlex.join(["pulsebridge", "commands", "resend", command.command_id, "--device", command.device])
    of_group = "" if command.ref is None else f" ({command.ref.command_id} of the group {command.ref.group})"
    return (
        f"push gave up the command {command.command_id}{of_group} and may remember its id: under that one it would be dropped "
        f"as a repetition. Send it again under a new one, to {command.device} alone: {again}"
    )


def _remapped(letter: DeadLetter, told: dict[str, str], settings: PulsarSettings, mapper: Mapper) -> Replay | Refusal:
    if not letter.mqtt_topic:
        return Refusal(letter, "it was no MQTT publish, so there is nothing to map")
    try:
        message = message_of(letter.payload, letter.told)
        told = full_envelope(told)
    except ContractError as e:
        return Refusal(letter, e.what)
    route = mapper.route(message.topic)
    if isinstance(route, PerMessage):
        route = route.of(message.payload, () if message.properties is None else message.properties.user)
    if isinstance(route, NoRoute):
        return Refusal(letter, f"the present rules have no place for it either: {route.reason}")
    if isinstance(route, ResumeAsked):
        return Refusal(letter, "a device asked for its commands, and would ask again")
    if isinstance(route, LeftOut):
        return Refusal(letter, f"the present rules leave it out: {route.reason}")
    for name, value in ((P_DEVICE, route.device), (P_COMMAND_TOPIC, route.command_topic)):
        told.pop(name, None)
        if value is not None:
            told[name] = value
    told[P_RULE] = route.rule
    return Replay(letter, settings.readings_topic(route.local, route.namespace), route.key, folded_envelope(told))
