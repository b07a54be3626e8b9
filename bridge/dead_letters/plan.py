"""Plan of a replay: the target of a dead letter, or the reason against it. It writes nothing."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from bridge.contract import (
    C_ID,
    COMMANDS_TOPIC,
    DEAD_MALFORMED,
    GROUP_COMMANDS_TOPIC,
    P_COMMAND_TOPIC,
    P_DEAD_CUT,
    P_DEAD_TOPIC,
    P_DEVICE,
    P_REPLAYED,
    P_RULE,
    P_VERSION,
    folded_envelope,
    full_envelope,
)
from bridge.contract.commands import decode_command
from bridge.contract.groups import decode_group_command
from bridge.dead_letters.letters import DEAD_PROPERTIES
from bridge.dead_letters.records import DeadLetter
from bridge.errors import ContractError
from bridge.mqtt.envelope import message_of
from bridge.routing.mapper import LeftOut, Mapper, NoRoute, PerMessage, ResumeAsked
from bridge.settings.pulsar import PulsarSettings

__all__ = ["Refusal", "Replay", "replay_of"]


@dataclass(frozen=True, slots=True)
class Replay:
    """The original message of a dead letter; its property ``pb.replayed`` contains the id of the letter."""

    letter: DeadLetter
    topic: str
    """Full name of the Pulsar topic, without partition."""
    key: str
    properties: dict[str, str]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A dead letter that cannot be replayed, and the reason."""

    letter: DeadLetter
    why: str


def replay_of(letter: DeadLetter, settings: PulsarSettings, mapper: Mapper | None = None) -> Replay | Refusal:
    """Return the replay to the original topic, or with ``mapper`` to that of the current rules."""
    if letter.problem:
        return Refusal(letter, f"{letter.reason}; show --out writes its payload to a file")
    if letter.lost_bytes:
        return Refusal(
            letter, f"{letter.lost_bytes} bytes of its payload were not kept: the dead letter has only its head"
        )
    if letter.reason.startswith(DEAD_MALFORMED):
        return Refusal(letter, "its payload is the malformed packet: the device must republish the message")
    if P_DEAD_CUT in letter.properties:
        return Refusal(letter, "its envelope was too large and is cut: it differs from the published one")
    properties = {name: value for name, value in letter.properties.items() if name not in DEAD_PROPERTIES}
    if not properties.get(P_DEVICE):
        properties.pop(P_DEVICE, None)
    properties[P_REPLAYED] = str(letter.id)
    if mapper is not None:
        return _remapped(letter, properties, mapper)
    if not letter.target:
        return Refusal(letter, "no rule named a topic for it: correct the rules and resend it with --remap")
    if letter.target == settings.system_topic(GROUP_COMMANDS_TOPIC):
        return _to_group(letter, properties)
    problem = _topic_problem(letter.target, properties, settings) or _command_problem(letter, properties, settings)
    if problem:
        return Refusal(letter, problem)
    return Replay(letter, letter.target, letter.target_key, properties)


def _topic_problem(topic: str, properties: Mapping[str, str], settings: PulsarSettings) -> str:
    # The name is data of a message: it must not lead to a topic that these settings do not own.
    if topic == settings.system_topic(COMMANDS_TOPIC):
        return "" if C_ID in properties and P_VERSION in properties else "it lacks the properties of a command"
    if any(topic.startswith(f"persistent://{name}/") for name in settings.readings_namespaces):
        return ""
    return f"{topic} is neither a readings topic nor a commands topic of these settings"


def _to_group(letter: DeadLetter, properties: dict[str, str]) -> Replay | Refusal:
    """Plan a group command, which no member has received: unknown group, or out of order."""
    properties.pop(P_DEVICE, None)  # in the letter it is the name of the group
    try:
        command = decode_group_command(properties, letter.payload)
    except ContractError as e:
        return Refusal(letter, f"it is not a valid group command: {e.what}. Write a new command")
    return Replay(letter, letter.target, command.group, properties)


def _command_problem(letter: DeadLetter, properties: Mapping[str, str], settings: PulsarSettings) -> str:
    was_stored = letter.properties.get(P_DEAD_TOPIC) != letter.target  # it names a partition; sinks name only the topic
    if letter.target != settings.system_topic(COMMANDS_TOPIC) or not was_stored:
        return ""
    try:
        command = decode_command(properties, letter.payload)
    except ContractError:
        return ""  # push could not read it, so no cursor contains its id: a later release may read it
    resend = shlex.join(["pulsebridge", "resend", command.command_id, "--device", command.device])
    of_group = "" if command.ref is None else f" ({command.ref.command_id} of the group {command.ref.group})"
    return (
        f"push dead-lettered the command {command.command_id}{of_group}; it may know the id and then drops a command "
        f"with the same id as a duplicate. Resend it with a new id, to {command.device} alone: {resend}"
    )


def _remapped(letter: DeadLetter, properties: dict[str, str], mapper: Mapper) -> Replay | Refusal:
    if not letter.mqtt_topic:
        return Refusal(letter, "it was not an MQTT publish, so the rules cannot map it")
    try:
        message = message_of(letter.payload, letter.properties)
        properties = full_envelope(properties)
    except ContractError as e:
        return Refusal(letter, e.what)
    route = mapper.route(message.topic)
    if isinstance(route, PerMessage):
        route = route.of(message.payload, () if message.properties is None else message.properties.user)
    if isinstance(route, NoRoute):
        return Refusal(letter, f"the current rules have no topic for it either: {route.reason}")
    if isinstance(route, ResumeAsked):
        return Refusal(letter, "it is a device's request for its commands; the device repeats it")
    if isinstance(route, LeftOut):
        return Refusal(letter, f"the current rules exclude it: {route.reason}")
    for name, value in ((P_DEVICE, route.device), (P_COMMAND_TOPIC, route.command_topic)):
        properties.pop(name, None)
        if value is not None:
            properties[name] = value
    properties[P_RULE] = route.rule
    return Replay(letter, route.topic, route.key, folded_envelope(properties))
