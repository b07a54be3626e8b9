"""The options of the sinks: types, defaults, and checks.

Names are case-insensitive, as Spark's own. An unknown name is rejected with the nearest known name.
``sinks.option_names`` has all names.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr, ValidationError

from bridge.contract import COMMANDS_TOPIC, GROUP_MEMBERS_TOPIC, full_name
from bridge.contract.commands import publish_topic_problem
from bridge.contract.names import DEFAULT_MAX_NAME_BYTES, MAX_NAME_BYTES
from bridge.errors import ConfigError
from bridge.settings.mqtt import MqttSettings
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.secret_file import SecretFile
from bridge.spark.connection_options import OptionReader, connection_options, pulsar_settings
from sinks.option_names import COMMANDS, GROUPS, MQTT, MQTT_SETTINGS, NO_EFFECT, OPTIONS, TOPICS

__all__ = [
    "MqttOptions",
    "PulsarTarget",
    "SinkOptions",
    "read_group_options",
    "read_mqtt_options",
    "read_options",
    "read_topic_options",
    "sink_options",
]

# Options that Spark itself passes to a sink.
_SPARKS_OWN: Final = ("path", "checkpointlocation", "queryname", "mergeschema")
_NO_EFFECT: Final = {name.lower() for name in NO_EFFECT}


@dataclass(frozen=True)
class PulsarTarget:
    """Connection and settings of a task's writes to Pulsar. Times are in seconds; ``repr`` hides secrets."""

    pulsar: PulsarSettings
    send_timeout_s: float = 60.0
    fail_on_bad_rows: bool = False
    batching: bool = True
    chunking: bool = False


@dataclass(frozen=True)
class SinkOptions:
    """Checked options of a write to Pulsar."""

    target: PulsarTarget
    topic: str | None
    """Full name; None if each row names its own."""
    provision: bool = True
    base64_keys: bool = False
    max_name_bytes: int = DEFAULT_MAX_NAME_BYTES

    @property
    def pulsar(self) -> PulsarSettings:
        """The connection."""
        return self.target.pulsar


@dataclass(frozen=True)
class MqttOptions:
    """Checked options of a write to an MQTT broker. ``send_timeout_s`` is in seconds."""

    mqtt: MqttSettings
    topic: str | None
    dead_letter_topic: str
    window: int = 1000
    send_timeout_s: float = 60.0
    fail_on_bad_rows: bool = False
    allow_loopback: bool = False


def sink_options(pulsar: PulsarSettings, max_name_bytes: int = DEFAULT_MAX_NAME_BYTES) -> dict[str, str]:
    """Return the options of ``pulsebridge_commands`` for these settings, secrets included."""
    return connection_options(pulsar) | {
        "tenant": pulsar.tenant,
        "namespace": pulsar.namespace,
        "system.namespace": pulsar.system_namespace,
        "partitions": str(pulsar.command_partitions),
        "command.generation": str(pulsar.command_generation),
        "maxNameBytes": str(max_name_bytes),
    }


def read_options(options: Mapping[str, str]) -> SinkOptions:
    """Check the options of ``pulsebridge_commands``. Raises ConfigError listing all problems at once."""
    reader = _reader(COMMANDS, options)
    target = _target(reader)
    provision = reader.flag("provision", True)
    max_name = _max_name(reader)
    topic = reader.text("topic") or COMMANDS_TOPIC
    try:
        # Pulsar would confirm a command on another topic, but push would not deliver it.
        if target is not None and full_name(topic).rpartition("/")[2] not in (
            COMMANDS_TOPIC,
            target.pulsar.system_topic(COMMANDS_TOPIC).rpartition("/")[2],
        ):
            reader.problems.append(
                f"topic={topic!r}: push reads only the topic {COMMANDS_TOPIC}; leave topic out and set its namespace "
                'with tenant and system.namespace, or write with format("pulsebridge") for another program'
            )
    except ValueError as e:
        reader.problems.append(str(e))
    if target is None or reader.problems:
        raise _wrong(COMMANDS, reader)
    full = full_name(topic) if "/" in topic else target.pulsar.system_topic(topic)
    return SinkOptions(target, full, provision, max_name_bytes=max_name)


def read_group_options(options: Mapping[str, str]) -> SinkOptions:
    """Check the options of ``pulsebridge_groups``. Raises ConfigError listing all problems at once."""
    reader = _reader(GROUPS, options)
    target = _target(reader)
    provision = reader.flag("provision", True)
    max_name = _max_name(reader)
    if target is None or reader.problems:
        raise _wrong(GROUPS, reader)
    topic = target.pulsar.system_topic(GROUP_MEMBERS_TOPIC)
    return SinkOptions(target, topic, provision, max_name_bytes=max_name)


def read_topic_options(options: Mapping[str, str]) -> SinkOptions:
    """Check the options of ``pulsebridge`` as a sink. Raises ConfigError listing all problems at once."""
    reader = _reader(TOPICS, options)
    chunking = reader.flag("pulsar.producer.chunkingEnabled", False)
    batching = reader.flag("pulsar.producer.batchingEnabled", not chunking)
    if batching and chunking:
        reader.problems.append("chunkingEnabled=true and batchingEnabled=true: a batch cannot be chunked")
    target = _target(reader, batching=batching, chunking=chunking)
    provision = reader.flag("provision", True)
    max_name = _max_name(reader)
    base64_keys = reader.choice("keyEncoding", ("text", "base64")) == "base64"
    topic = reader.text("topic")
    try:
        topic = None if topic is None else full_name(topic.strip())
    except ValueError as e:
        reader.problems.append(str(e))
    if target is None or reader.problems:
        raise _wrong(TOPICS, reader)
    return SinkOptions(target, topic, provision, base64_keys, max_name)


def read_mqtt_options(options: Mapping[str, str]) -> MqttOptions:
    """Check the options of ``pulsebridge_mqtt``. Raises ConfigError listing all problems at once."""
    reader = _reader(MQTT, options)
    mqtt = _mqtt(reader)
    topic, dead = reader.text("topic"), reader.text("deadLetterTopic") or "pulsebridge/dead-letters"
    for name, given in (("topic", topic), ("deadLetterTopic", dead)):
        problem = None if given is None else publish_topic_problem(given)
        if problem is not None:
            reader.problems.append(f"{name} {problem}")
    window = reader.integer("window", least=1) or 1000
    timeout_ms = reader.integer("sendTimeoutMs", least=1) or 60_000
    fail, loopback = _fail(reader), reader.flag("allowLoopback", False)
    if mqtt is None or reader.problems:
        raise _wrong(MQTT, reader)
    return MqttOptions(mqtt, topic, dead, window, timeout_ms / 1000, fail, loopback)


def _reader(name: str, options: Mapping[str, str]) -> OptionReader:
    """Return the options by lower-case name, with unknown options as the first problems."""
    given = {option.lower(): value for option, value in options.items()}
    known = {option.lower(): option for option in OPTIONS[name]}
    problems = []
    for option in given:
        if option in known or option in _SPARKS_OWN or (name == TOPICS and option in _NO_EFFECT):
            continue
        near = difflib.get_close_matches(option, known, 1, 0.5)
        hint = f"; did you mean {known[near[0]]}?" if near else ""
        problems.append(f"{option}: no such option{hint}")
    return OptionReader(given, problems)


def _wrong(name: str, reader: OptionReader) -> ConfigError:
    return ConfigError(f"options of {name}: " + "; ".join(reader.problems))


def _fail(reader: OptionReader) -> bool:
    return reader.choice("badRows", ("deadletter", "fail")) == "fail"


def _max_name(reader: OptionReader) -> int:
    given = reader.integer("maxNameBytes", least=16)
    if given is not None and given > MAX_NAME_BYTES:
        reader.problems.append(f"maxNameBytes={given}: at most {MAX_NAME_BYTES}")
    return given or DEFAULT_MAX_NAME_BYTES


def _target(reader: OptionReader, *, batching: bool = True, chunking: bool = False) -> PulsarTarget | None:
    more: dict[str, object] = {
        setting: reader.text(option)
        for option, setting in (
            ("tenant", "tenant"), ("namespace", "namespace"), ("system.namespace", "system_namespace"),
        )
        if reader.text(option) is not None
    }  # fmt: skip
    partitions = reader.integer("partitions", least=1)
    if partitions is not None:
        more["command_partitions"] = partitions
    generation = reader.integer("command.generation", least=0)
    if generation is not None:
        more["command_generation"] = generation
    timeout_ms = reader.integer("sendTimeoutMs", least=1) or 60_000
    fail = _fail(reader)
    pulsar = pulsar_settings(reader, **more)
    return None if pulsar is None else PulsarTarget(pulsar, timeout_ms / 1000, fail, batching, chunking)


def _mqtt(reader: OptionReader) -> MqttSettings | None:
    values: dict[str, Any] = {}
    for name in MQTT_SETTINGS:
        text = reader.text(f"mqtt.{name}")
        if text is not None:
            values[name] = SecretStr(text) if name == "password" else text
    for name in ("tls_ca", "tls_certificate", "tls_private_key"):
        if name in values:
            values[name] = Path(values[name])
    file = reader.text("mqtt.password_file")
    if file is not None:
        if "password" in values:
            reader.problems.append("mqtt.password and mqtt.password_file: set one of them")
        try:
            values["password"] = SecretFile(file)
        except (OSError, ValueError) as e:
            reader.problems.append(f"mqtt.password_file: {e}")
    try:
        return MqttSettings(client_id=reader.text("mqtt.client_id") or "pb-sink", **values)
    except ValidationError as e:
        reader.problems += [
            f"{'.'.join(('mqtt', *map(str, p['loc'])))}: {p['msg'].removeprefix('Value error, ')}" for p in e.errors()
        ]
        return None
