"""The options of ``format("pulsebridge")``: names, types, defaults, and what is refused.

Names are those of the StreamNative connector, compared without case; an unknown one is refused with the nearest
known name. What an option leads to is decided by the modules that take it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr, ValidationError

from bridge.contract import SOURCE_COLUMNS, Position, topic_name
from bridge.errors import ConfigError
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.secret_file import SecretFile, token_of
from sources.planning import Limits

__all__ = ["EARLIEST", "LATEST", "OPTIONS", "SourceOptions", "StartingOffsets", "connection_options", "parse"]

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

OPTIONS: Final[Mapping[str, str]] = {
    "service.url": "Pulsar's binary service URL, pulsar:// or pulsar+ssl://.",
    "admin.url": "Pulsar's admin REST URL, http:// or https://.",
    "topic": "The topic to read.",
    "topics": "The topics to read, separated by commas.",
    "waitingForNonExistedTopic": "Streaming: whether a topic that is not there yet is waited for (default false: refused).",
    "startingOffsets": "earliest, latest, or JSON: {topic or partition: [ledger, entry] or earliest or latest}.",
    "endingOffsets": "Batch only, likewise; default latest.",
    "startingTime": "Publish time to start at, ms since the epoch; instead of startingOffsets.",
    "failOnDataLoss": "Whether to fail when entries are gone (default true), or to warn and go on.",
    "maxBytesPerTrigger": "Most bytes of a trigger, as stored.",
    "maxEntriesPerTrigger": "Most entries of a trigger; a producer's batch is one entry.",
    "maxRowsPerTrigger": "Most rows of a trigger, as far as the rows per entry seen so far can tell.",
    "predefinedSubscription": "Streaming: name of the durable subscription that holds what is not read yet; required.",
    "reuseSubscription": "What a new checkpoint does with a subscription in use before: position or resolve; default: fail.",
    "subscriptionWaitMs": "How long to wait for a subscription that another consumer holds, in ms (default 15000).",
    "minPartitions": "Least number of tasks; entry ranges are split to reach it.",
    "maxBytesPerPartition": "Most bytes of one task; a longer range is split by entries.",
    "readIdleTimeout": "How long a task waits for the next entry before it asks what became of it, in ms (default 60000).",
    "columns": "The columns to build, separated by commas; default all.",
    "pulsar.client.token": "Token for both URLs.",
    "pulsar.client.authPluginClassName": "Java class name of the token or TLS authentication.",
    "pulsar.client.authParams": "Its parameters: token:…, file:///… (a token that is read anew when it rotates), or tlsCertFile:…,tlsKeyFile:….",
    "pulsar.client.tlsTrustCertsFilePath": "PEM file of the authorities that sign the brokers' certificates.",
    "pulsar.client.tlsCertificateFilePath": "PEM file of this client's certificate.",
    "pulsar.client.tlsKeyFilePath": "PEM file of this client's private key.",
    "pulsar.client.tlsHostnameVerificationEnable": "Whether a broker's certificate must name its host (default true).",
    "pulsar.client.operationTimeoutMs": "How long a lookup or a subscribe may take, in ms (default 30000).",
    "pulsar.client.connectionTimeoutMs": "How long a TCP connection may take, in ms (default 5000).",
}
"""Every option with its meaning; the names as they are documented, compared without case."""

_KNOWN: Final = {name.lower(): name for name in OPTIONS}
_LATER: Final = {
    "topicspattern": "name the topics with `topics`",
    "endingtime": "give endingOffsets",
    "minrowspertrigger": "use a longer trigger interval",
    "maxtriggerdelay": "use a longer trigger interval",
}
_SPARK_OWN: Final = frozenset({"path"})
_TOKEN_CLASS: Final = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
_TLS_CLASS: Final = "org.apache.pulsar.client.impl.auth.AuthenticationTls"


@dataclass(frozen=True)
class StartingOffsets:
    """Where to begin (or end): a word for all, places for some, or a publish time in ms."""

    default: str
    places: Mapping[str, Position | str]
    time_ms: int | None = None
    text: str = EARLIEST
    """As the user gave it: what the subscription records (H12)."""


@dataclass(frozen=True)
class SourceOptions:
    """The options of one reader, checked."""

    pulsar: PulsarSettings
    topics: tuple[str, ...]
    starting: StartingOffsets
    ending: StartingOffsets
    columns: tuple[str, ...]
    limits: Limits
    subscription: str | None = None
    reuse: str | None = None
    subscription_wait_s: float = 15.0
    fail_on_data_loss: bool = True
    wait_for_topics: bool = False
    min_partitions: int | None = None
    max_bytes_per_partition: int | None = None
    read_idle_timeout_ms: int = 60_000


def connection_options(pulsar: PulsarSettings) -> dict[str, str]:
    """Return the options that connect a query as these settings say; secrets included."""
    found = {"service.url": pulsar.service_url, "admin.url": pulsar.admin_url}
    if isinstance(pulsar.token, SecretFile):  # it is read where and when it is used: on the executors too
        found["pulsar.client.authPluginClassName"] = _TOKEN_CLASS
        found["pulsar.client.authParams"] = pulsar.token.path.absolute().as_uri()
    elif pulsar.token is not None:
        found["pulsar.client.token"] = pulsar.token.get_secret_value()
    for name, value in (
        ("tlsTrustCertsFilePath", pulsar.tls_ca),
        ("tlsCertificateFilePath", pulsar.tls_certificate),
        ("tlsKeyFilePath", pulsar.tls_private_key),
    ):
        if value is not None:
            found[f"pulsar.client.{name}"] = str(value)
    if not pulsar.tls_validate_hostname:
        found["pulsar.client.tlsHostnameVerificationEnable"] = "false"
    return found


def parse(given: Mapping[str, str], *, streaming: bool | None) -> SourceOptions:
    """Check the options of a query; ``streaming`` None while it is not known which kind it will be.

    Raises ConfigError with all problems at once.
    """
    options = {name.lower(): value for name, value in given.items()}
    problems = _unknown(options)
    reader = _Reader(options, problems)
    topics = _topics(options, problems)
    starting = _offsets(reader, "startingOffsets", EARLIEST if not streaming else LATEST)
    time_ms = reader.integer("startingTime", least=0)
    if time_ms is not None:
        if "startingoffsets" in options:
            problems.append("startingTime and startingOffsets: give one of them")
        starting = StartingOffsets(LATEST, {}, time_ms, f"time:{time_ms}")
    if streaming and "endingoffsets" in options:
        problems.append(
            "endingOffsets: a streaming query has no end; use spark.read, or Trigger.AvailableNow"
        )
    subscription, reuse = _subscription(options, streaming, problems)
    columns = _columns(options, problems)
    pulsar = _pulsar(reader)
    ending = _offsets(reader, "endingOffsets", LATEST)
    limits = Limits(
        entries=reader.integer("maxEntriesPerTrigger", least=1),
        size=reader.integer("maxBytesPerTrigger", least=1),
        rows=reader.integer("maxRowsPerTrigger", least=1),
    )
    wait_ms = reader.integer("subscriptionWaitMs", least=0)
    idle_ms = reader.integer("readIdleTimeout", least=100)
    least_tasks = reader.integer("minPartitions", least=1)
    most_bytes = reader.integer("maxBytesPerPartition", least=1)
    fail = reader.flag("failOnDataLoss", True)
    wait = reader.flag("waitingForNonExistedTopic", False)
    if problems or pulsar is None:
        raise ConfigError(
            'format("pulsebridge"): ' + "; ".join(problems), remedy="correct the options of the query"
        )
    return SourceOptions(
        pulsar=pulsar,
        topics=topics,
        starting=starting,
        ending=ending,
        columns=columns,
        limits=limits,
        subscription=subscription,
        reuse=reuse,
        subscription_wait_s=15.0 if wait_ms is None else wait_ms / 1000,
        fail_on_data_loss=fail,
        wait_for_topics=wait,
        min_partitions=least_tasks,
        max_bytes_per_partition=most_bytes,
        read_idle_timeout_ms=60_000 if idle_ms is None else idle_ms,
    )


def _subscription(
    options: Mapping[str, str], streaming: bool | None, problems: list[str]
) -> tuple[str | None, str | None]:
    """Return the name, and what to do when another checkpoint used it before."""
    subscription = options.get("predefinedsubscription", "").strip() or None
    if streaming and subscription is None:
        problems.append(
            "predefinedSubscription is required for streaming: the durable subscription of this name keeps in Pulsar "
            "what the query has not read; give each query a name of its own"
        )
    reuse = options.get("reusesubscription")
    if reuse is not None and reuse.lower() not in ("position", "resolve"):
        problems.append(f"reuseSubscription={reuse!r}: give position or resolve")
    return subscription, None if reuse is None else reuse.lower()


def _unknown(options: Mapping[str, str]) -> list[str]:
    problems = []
    for name in options:
        if name in _KNOWN or name in _SPARK_OWN:
            continue
        if name in _LATER:
            problems.append(f"option {name} is not supported: {_LATER[name]}")
            continue
        near = difflib.get_close_matches(name, _KNOWN, n=1)
        problems.append(f"unknown option {name!r}" + (f", did you mean {_KNOWN[near[0]]}?" if near else ""))
    return problems


def _topics(options: Mapping[str, str], problems: list[str]) -> tuple[str, ...]:
    given = [options[name] for name in ("topic", "topics") if name in options]
    if len(given) != 1:
        if "topicspattern" not in options:
            problems.append("give exactly one of topic and topics")
        return ()
    found = []
    for name in given[0].split(","):
        try:
            found.append(_full_name(name.strip()))
        except ValueError as e:
            problems.append(str(e))
    return tuple(dict.fromkeys(found))


def _full_name(name: str) -> str:
    domain, mark, rest = name.partition("://")
    if mark and domain != "persistent":
        raise ValueError(f"topic {name!r}: a {domain} topic keeps nothing to replay; give a persistent one")
    parts = (rest if mark else name).split("/")
    if not all(parts) or len(parts) not in (1, 3):
        raise ValueError(
            f"topic {name!r}: give persistent://tenant/namespace/name, or a name in public/default"
        )
    return topic_name(*parts) if len(parts) == 3 else topic_name("public", "default", parts[0])


def _columns(options: Mapping[str, str], problems: list[str]) -> tuple[str, ...]:
    known = [name for name, _ in SOURCE_COLUMNS]
    if "columns" not in options:
        return tuple(known)
    asked = [name.strip() for name in options["columns"].split(",") if name.strip()]
    for name in asked:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            problems.append(f"columns: no column {name!r}" + (f", did you mean {near[0]}?" if near else ""))
    if not asked:
        problems.append("columns: name one at least")
    return tuple(asked)


class _Reader:
    """Typed access to the options; problems are collected."""

    def __init__(self, options: Mapping[str, str], problems: list[str]) -> None:
        self.options = options
        self.problems = problems

    def text(self, name: str) -> str | None:
        return self.options.get(name.lower())

    def integer(self, name: str, *, least: int) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        try:
            value = int(text)
        except ValueError:
            self.problems.append(f"{name}={text!r} is not a whole number")
            return None
        if value < least:
            self.problems.append(f"{name}={text!r} is below {least}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.strip().lower() not in ("true", "false"):
            self.problems.append(f"{name}={text!r} is neither true nor false")
        return text.strip().lower() == "true"


def _offsets(reader: _Reader, name: str, default: str) -> StartingOffsets:
    text = (reader.text(name) or default).strip()
    if text.lower() in (EARLIEST, LATEST):
        return StartingOffsets(text.lower(), {}, text=text.lower())
    try:
        body = json.loads(text)
        if not isinstance(body, dict):
            raise ValueError
        if body.get("v") == 1 and isinstance(body.get("t"), dict):  # an offset copied from a checkpoint
            body = body["t"]
        places = {_full_name(topic): _place(value) for topic, value in body.items()}
    except (ValueError, TypeError):
        reader.problems.append(
            f'{name}={text[:80]!r}: give earliest, latest, or JSON like {{"topic": [ledger, entry]}}'
        )
        return StartingOffsets(default, {})
    # What the JSON does not name is read whole: nothing is skipped that nobody asked to skip.
    rest = EARLIEST if name == "startingOffsets" else LATEST
    return StartingOffsets(rest, places, text=json.dumps(body, sort_keys=True, separators=(",", ":")))


def _place(value: Any) -> Position | str:
    if value in (EARLIEST, LATEST):
        return str(value)
    ledger, entry = value
    return Position(int(ledger), int(entry))


def _pulsar(reader: _Reader) -> PulsarSettings | None:
    values: dict[str, Any] = {}
    for name, schemes in (
        ("service.url", ("pulsar://", "pulsar+ssl://")),
        ("admin.url", ("http://", "https://")),
    ):
        text = reader.text(name)
        if text is None:
            reader.problems.append(f"{name} is required: {OPTIONS[name]}")
        elif not text.startswith(schemes):
            reader.problems.append(f"{name}={text!r} does not begin with {' or '.join(schemes)}")
        values[name.replace(".", "_")] = text or ""
    token, certificate, key = _authentication(reader)
    values["token"] = token
    ca = reader.text("pulsar.client.tlsTrustCertsFilePath")
    values |= {
        "tls_ca": None if ca is None else Path(ca),
        "tls_certificate": None if certificate is None else Path(certificate),
        "tls_private_key": None if key is None else Path(key),
        "tls_validate_hostname": reader.flag("pulsar.client.tlsHostnameVerificationEnable", True),
    }
    for name, setting in (
        ("operationTimeoutMs", "operation_timeout_s"),
        ("connectionTimeoutMs", "connection_timeout_s"),
    ):
        ms = reader.integer(f"pulsar.client.{name}", least=1)
        if ms is not None:
            values[setting] = ms / 1000
    try:
        return PulsarSettings(**values)
    except ValidationError as e:
        reader.problems.extend(str(error["msg"]) for error in e.errors())
        return None


def _authentication(reader: _Reader) -> tuple[SecretStr | None, str | None, str | None]:
    text = reader.text("pulsar.client.token")
    token = None if text is None else SecretStr(text)
    certificate = reader.text("pulsar.client.tlsCertificateFilePath")
    key = reader.text("pulsar.client.tlsKeyFilePath")
    plugin = reader.text("pulsar.client.authPluginClassName")
    params = reader.text("pulsar.client.authParams") or ""
    if plugin is None:
        return token, certificate, key
    if plugin == _TOKEN_CLASS:
        try:
            found = token_of(params)
        except (OSError, ValueError) as e:
            reader.problems.append(f"pulsar.client.authParams: the token's file cannot be read: {e}")
            return token, certificate, key
        if found is not None:
            return found, certificate, key
    if plugin == _TLS_CLASS:
        pairs = dict(part.partition(":")[::2] for part in params.split(","))
        return token, pairs.get("tlsCertFile", certificate), pairs.get("tlsKeyFile", key)
    reader.problems.append(
        f"pulsar.client.authPluginClassName={plugin!r} with these authParams is not supported: give {_TOKEN_CLASS} "
        f"with token:… or file:///…, or {_TLS_CLASS} with tlsCertFile:…,tlsKeyFile:…"
    )
    return token, certificate, key
