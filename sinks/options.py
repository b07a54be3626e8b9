"""The options of the sinks, by the source's names: which there are, and the settings that they stand for.

Names compare without case, as Spark's own do. An unknown option is refused with the nearest known name.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import SecretStr, ValidationError

from bridge.contract import COMMANDS_TOPIC, topic_name
from bridge.errors import ConfigError
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.secret_file import token_of

__all__ = ["OPTIONS", "SinkOptions", "read_options"]

OPTIONS: Final[dict[str, str]] = {
    "service.url": "Pulsar's binary service URL; default pulsar://127.0.0.1:6650",
    "admin.url": "Pulsar's admin REST URL; default http://127.0.0.1:8080",
    "topic": "commands topic, a full name or one in the system namespace; default: the contract's",
    "tenant": "tenant of the topics; default public",
    "namespace": "namespace of the readings; default pulsebridge",
    "system.namespace": "namespace of commands and dead letters; default pulsebridge-system",
    "partitions": "partitions of a commands topic that is created; default 4",
    "provision": "whether missing topics and subscriptions are created, true or false; default true",
    "sendTimeoutMs": "how long a task waits without any receipt of Pulsar before it fails, in ms; default 60000",
    "pulsar.client.token": "token to authenticate with",
    "pulsar.client.authPluginClassName": "only the token plug-in is known: use authParams",
    "pulsar.client.authParams": "token:<token> or file:///<path>, as the Java client takes it; a file is read anew",
    "pulsar.client.tlsTrustCertsFilePath": "PEM file of the authorities that sign the brokers' certificates",
    "pulsar.client.tlsCertificateFilePath": "PEM file of the client's certificate (mTLS)",
    "pulsar.client.tlsKeyFilePath": "PEM file of the client's private key (mTLS)",
    "pulsar.client.tlsHostnameVerificationEnable": "whether a broker's certificate must name its host",
}
"""Every option with its meaning and unit."""

# What Spark itself passes to a sink.
_SPARKS_OWN: Final = ("path", "checkpointlocation", "queryname", "mergeschema")
_KNOWN: Final = {name.lower(): name for name in OPTIONS}


@dataclass(frozen=True)
class SinkOptions:
    """Options that were checked. ``send_timeout_s`` is in seconds. Secrets do not show in ``repr``."""

    pulsar: PulsarSettings
    topic: str
    provision: bool = True
    send_timeout_s: float = 60.0


def read_options(options: Mapping[str, str]) -> SinkOptions:
    """Check the options of a write. Raises ConfigError listing all problems at once."""
    given = {name.lower(): value for name, value in options.items()}
    problems = _unknown(given)
    values: dict[str, object] = {}
    for option, field in (
        ("service.url", "service_url"),
        ("admin.url", "admin_url"),
        ("tenant", "tenant"),
        ("namespace", "namespace"),
        ("system.namespace", "system_namespace"),
        ("partitions", "command_partitions"),
        ("pulsar.client.tlstrustcertsfilepath", "tls_ca"),
        ("pulsar.client.tlscertificatefilepath", "tls_certificate"),
        ("pulsar.client.tlskeyfilepath", "tls_private_key"),
        ("pulsar.client.tlshostnameverificationenable", "tls_validate_hostname"),
    ):
        if option in given:
            values[field] = (
                Path(given[option]) if field.startswith("tls_") and "path" in option else given[option]
            )
    if "pulsar.client.token" in given:
        values["token"] = SecretStr(given["pulsar.client.token"])
    params = given.get("pulsar.client.authparams")
    if params is not None:
        try:
            values["token"] = token_of(params)
        except (OSError, ValueError) as e:
            problems.append(f"pulsar.client.authParams: the token's file cannot be read: {e}")
        if values.get("token", "") is None:
            problems.append("pulsar.client.authParams: only token:<token> and file:///<path> are known here")
    provision = given.get("provision", "true").lower()
    if provision not in ("true", "false"):
        problems.append(f"provision: is {provision!r}, wanted true or false")
    timeout = given.get("sendtimeoutms", "60000")
    if not timeout.isdecimal() or int(timeout) == 0:
        problems.append(f"sendTimeoutMs: is {timeout!r}, wanted a whole number of ms above 0")
    pulsar = _pulsar(values, problems)
    if problems or pulsar is None:
        raise ConfigError("options of pulsebridge_commands: " + "; ".join(problems))
    topic = given.get("topic", COMMANDS_TOPIC)
    full = topic if "://" in topic else topic_name(pulsar.tenant, pulsar.system_namespace, topic)
    return SinkOptions(pulsar, full, provision == "true", int(timeout) / 1000)


def _unknown(given: Iterable[str]) -> list[str]:
    problems = []
    for name in given:
        if name in _KNOWN or name in _SPARKS_OWN:
            continue
        near = difflib.get_close_matches(name, _KNOWN, 1, 0.5)
        hint = f"; did you mean {_KNOWN[near[0]]}?" if near else ""
        problems.append(f"{name}: no such option{hint}")
    return problems


def _pulsar(values: dict[str, object], problems: list[str]) -> PulsarSettings | None:
    try:
        return PulsarSettings.model_validate(values)
    except ValidationError as e:
        problems += [f"{'.'.join(map(str, p['loc'])) or 'options'}: {p['msg']}" for p in e.errors()]
        return None
