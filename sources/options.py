"""The options of ``format("pulsebridge")``: types, defaults, and what is refused.

Names are those of the StreamNative connector, compared without case; an unknown one is refused with the nearest
known name. All names stand in ``sources.option_names``; what an option leads to is decided by the modules that take it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from pydantic import ValidationError

from bridge.contract import SOURCE_COLUMNS, base_topic
from bridge.errors import ConfigError
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.secret_file import SecretFile
from sources.authentication import TOKEN_CLASS, identity_of
from sources.option_names import ALIASES, INSTEAD, NO_EFFECT, ONLY, OPTIONS, REFUSED, SAME_AS_CLIENT
from sources.places import EARLIEST, LATEST, StartingOffsets, offsets_of, times_of
from sources.planning import Limits
from sources.topics import TopicsPattern, asked_topics

if TYPE_CHECKING:
    from sources.decoding import Decoding

__all__ = ["EARLIEST", "LATEST", "OPTIONS", "SourceOptions", "StartingOffsets", "connection_options", "parse"]

_KNOWN: Final = {name.lower(): name for name in OPTIONS}
_ALIASES: Final = {name.lower(): known for name, known in ALIASES.items()}
_NO_EFFECT: Final = {name.lower(): why for name, why in NO_EFFECT.items()}
_ONLY: Final = {name.lower(): (name, *said) for name, said in ONLY.items()}
_REFUSED: Final = {name.lower(): why for name, why in REFUSED.items()}
_INSTEAD: Final = {name.lower(): known for name, known in INSTEAD.items()}
_OF_ADMIN: Final = {f"pulsar.admin.{name}".lower(): f"pulsar.client.{name}" for name in SAME_AS_CLIENT}
_DURATION: Final = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
"""Units of a time, as Spark's own options take them; a bare number is ms."""
_SPARK_OWN: Final = frozenset({"path"})
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True)
class SourceOptions:
    """The options of one reader, checked."""

    pulsar: PulsarSettings
    topics: tuple[str, ...]
    starting: StartingOffsets
    ending: StartingOffsets
    columns: tuple[str, ...]
    limits: Limits
    pattern: TopicsPattern | None = None
    """Where the topics are not named."""
    subscription: str | None = None
    reuse: str | None = None
    subscription_wait_s: float = 15.0
    fail_on_data_loss: bool = True
    wait_for_topics: bool = False
    min_partitions: int | None = None
    max_bytes_per_partition: int | None = None
    read_idle_timeout_ms: int = 60_000
    decode: str = "none"
    """``none``, ``value`` or ``fields``."""
    null_undecodable: bool = False
    keys: str = "text"
    """``text``, ``bytes`` or ``base64``, as ``sources.columns`` takes it."""
    decoding: Decoding | None = None
    """What ``decode`` comes to, once the topic's schema is known."""
    push_filters: bool | None = None
    """None: where Spark does it safely."""
    slack_ms: int | None = _DAY_MS
    """How far publish times may be out of order for a filter on them to spare entries; None: it spares none."""
    notes: tuple[str, ...] = ()
    """What was given and changes nothing, a line each."""


def connection_options(pulsar: PulsarSettings) -> dict[str, str]:
    """Return the options that connect a query as these settings say; secrets included."""
    found = {"service.url": pulsar.service_url, "admin.url": pulsar.admin_url}
    if isinstance(pulsar.token, SecretFile):  # it is read where and when it is used: on the executors too
        found["pulsar.client.authPluginClassName"] = TOKEN_CLASS
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
    problems: list[str] = []
    notes: list[str] = []
    options = _recognised({name.lower(): value for name, value in given.items()}, problems, notes)
    reader = _Reader(options, problems)
    topics, pattern = asked_topics(options, problems)
    starting, ending = _range(reader, streaming)
    if pattern is None:
        _refuse_strangers((starting, ending), topics, problems)
    subscription, reuse = _subscription(options, streaming, problems)
    columns = _columns(options, problems)
    pulsar = _pulsar(reader)
    limits = Limits(
        entries=reader.integer("maxEntriesPerTrigger", least=1),
        size=reader.integer("maxBytesPerTrigger", least=1),
        rows=reader.integer("maxRowsPerTrigger", least=1),
        least_rows=reader.integer("minRowsPerTrigger", least=1),
        delay_s=reader.seconds("maxTriggerDelay", 900.0),
    )
    if limits.rows is not None and limits.least_rows is not None and limits.rows < limits.least_rows:
        problems.append("minRowsPerTrigger is above maxRowsPerTrigger")
    wait_ms = reader.integer("subscriptionWaitMs", least=0)
    idle_ms = reader.integer("readIdleTimeout", least=100)
    slack_ms = reader.integer("publishTimeSlackMs", least=-1)
    found: dict[str, Any] = {
        "min_partitions": reader.integer("minPartitions", least=1),
        "max_bytes_per_partition": reader.integer("maxBytesPerPartition", least=1),
        "fail_on_data_loss": reader.flag("failOnDataLoss", True),
        "wait_for_topics": reader.flag("waitingForNonExistedTopic", False),
        "subscription_wait_s": 15.0 if wait_ms is None else wait_ms / 1000,
        "read_idle_timeout_ms": 60_000 if idle_ms is None else idle_ms,
        "slack_ms": _DAY_MS if slack_ms is None else None if slack_ms < 0 else slack_ms,
        "null_undecodable": reader.choice("decodeErrors", ("fail", "null")) == "null",
        "keys": reader.choice("keyEncoding", ("text", "base64")),
        "decode": _decoding(reader),
        "push_filters": None if reader.text("pushFilters") is None else reader.flag("pushFilters", False),
    }
    if problems or pulsar is None:
        raise ConfigError(
            'format("pulsebridge"): ' + "; ".join(problems), remedy="correct the options of the query"
        )
    return SourceOptions(
        pulsar, topics, starting, ending, columns, limits, pattern, subscription, reuse, notes=tuple(notes), **found
    )  # fmt: skip


def _decoding(reader: _Reader) -> str:
    """Return how ``value`` is decoded; StreamNative's ``allowDifferentTopicSchemas`` asks for the raw bytes."""
    asked = reader.choice("decode", ("none", "value", "fields"))
    if reader.flag("allowDifferentTopicSchemas", False) and asked != "none":
        reader.problems.append(
            f"allowDifferentTopicSchemas=true asks for the raw bytes, decode={asked} for the topic's schema"
        )
    return asked


def _range(reader: _Reader, streaming: bool | None) -> tuple[StartingOffsets, StartingOffsets]:
    """Return where the query begins and ends."""
    if streaming:
        for name in ("endingOffsets", "endingTime"):
            if reader.text(name) is not None:
                reader.problems.append(
                    f"{name}: a streaming query has no end; use spark.read, or Trigger.AvailableNow"
                )
    starting = _place(reader, "starting", LATEST if streaming else EARLIEST)
    ending = _place(reader, "ending", LATEST)
    if starting.time_ms is not None and ending.time_ms is not None and ending.time_ms < starting.time_ms:
        reader.problems.append("endingTime lies before startingTime")
    return starting, ending


def _place(reader: _Reader, which: str, default: str) -> StartingOffsets:
    offsets, times = reader.text(f"{which}Offsets"), reader.text(f"{which}Time")
    if offsets is not None and times is not None:
        reader.problems.append(f"{which}Time and {which}Offsets: give one of them")
    try:
        if times is not None:
            return times_of(times, ending=which == "ending")
        return offsets_of(offsets or default, ending=which == "ending")
    except (ValueError, TypeError, AttributeError):
        if times is not None:
            form = f'{which}Time={times[:80]!r}: give ms since the epoch, or JSON like {{"topic": ms}}'
        else:
            form = (
                f"{which}Offsets={(offsets or '')[:80]!r}: give earliest, latest, or JSON like "
                '{"topic": [ledger, entry]}'
            )
        reader.problems.append(form)
        return StartingOffsets(default, {})


def _refuse_strangers(
    asked: tuple[StartingOffsets, ...], topics: tuple[str, ...], problems: list[str]
) -> None:
    strangers = {
        name for place in asked for name in place.places if not {name, base_topic(name)} & set(topics)
    }
    if strangers and topics:
        problems.append(
            "offsets or times are given for topics that the query does not read: "
            + ", ".join(sorted(strangers))
        )


def _recognised(options: Mapping[str, str], problems: list[str], notes: list[str]) -> dict[str, str]:
    """Return the options that mean something, under their own names in lower case."""
    found: dict[str, str] = {}
    for name, value in options.items():
        if name in _KNOWN:
            found[name] = value
        elif name in _ALIASES:
            found.setdefault(_ALIASES[name].lower(), value)
        elif name in _OF_ADMIN:
            _same(options, name, problems, found)
        elif name in _NO_EFFECT or name.startswith("pulsar.producer."):
            why = _NO_EFFECT.get(name, NO_EFFECT["pulsar.producer.*"])
            notes.append(f"{name} changes nothing here: {why}")
        elif name in _ONLY:
            shown, only, why = _ONLY[name]
            if value.strip().lower() != only.lower():
                problems.append(f"{shown}={value!r}: {why}")
        elif name not in _SPARK_OWN:
            problems.append(_stranger(name))
    return found


def _same(options: Mapping[str, str], name: str, problems: list[str], found: dict[str, str]) -> None:
    """One identity and one trust serve both URLs: what the admin's options say stands for both, or agrees."""
    client = _OF_ADMIN[name]
    if options.get(client.lower(), options[name]) != options[name]:
        problems.append(
            f"{name} differs from {client}: one identity serves both URLs; give the one that may do both"
        )
    found.setdefault(client.lower(), options[name])


def _stranger(name: str) -> str:
    if name in _INSTEAD:
        return f"option {name} is Kafka's: give {_INSTEAD[name]}"
    if name.startswith("kafka."):
        return f"option {name} is Kafka's: the connection is described by service.url, admin.url and pulsar.client.…"
    if name in _REFUSED:
        return f"option {name} is not supported: {_REFUSED[name]}"
    near = difflib.get_close_matches(name, [*_KNOWN, *_ALIASES], n=1)
    shown = {**_KNOWN, **{alias.lower(): alias for alias in ALIASES}}
    return f"unknown option {name!r}" + (f", did you mean {shown[near[0]]}?" if near else "")


def _subscription(
    options: Mapping[str, str], streaming: bool | None, problems: list[str]
) -> tuple[str | None, str | None]:
    """Return the name, and what to do when another checkpoint used it before."""
    subscription = options.get("predefinedsubscription", "").strip() or None
    if subscription is None:
        subscription = options.get("subscriptionprefix", "").strip() or None
    if streaming and subscription is None:
        problems.append(
            "predefinedSubscription is required for streaming: the durable subscription of this name keeps in Pulsar "
            "what the query has not read; give each query a name of its own"
        )
    reuse = options.get("reusesubscription")
    if reuse is not None and reuse.lower() not in ("position", "resolve"):
        problems.append(f"reuseSubscription={reuse!r}: give position or resolve")
    return subscription, None if reuse is None else reuse.lower()


def _columns(options: Mapping[str, str], problems: list[str]) -> tuple[str, ...]:
    known = [name for name, _ in SOURCE_COLUMNS]
    if "columns" not in options:
        return tuple(known)
    asked = [name.strip() for name in options["columns"].split(",") if name.strip()]
    for name in asked:
        # The names of a record's fields are known once its schema is.
        if name not in known and options.get("decode", "").strip().lower() != "fields":
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

    def seconds(self, name: str, default: float) -> float:
        text = self.text(name)
        if text is None:
            return default
        found = _DURATION.fullmatch(text.strip().lower())
        if found is None:
            self.problems.append(f"{name}={text!r} is no time: give a number with ms, s, m, min, h or d")
            return default
        return int(found[1]) * _SECONDS[found[2] or "ms"]

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.strip().lower() not in ("true", "false"):
            self.problems.append(f"{name}={text!r} is neither true nor false")
        return text.strip().lower() == "true"

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return the word given, in lower case; the first of ``choices`` is the default."""
        text = (self.text(name) or choices[0]).strip().lower()
        if text not in choices:
            self.problems.append(f"{name}={text!r}: give {', '.join(choices[:-1])} or {choices[-1]}")
            return choices[0]
        return text


def _pulsar(reader: _Reader) -> PulsarSettings | None:
    values: dict[str, Any] = {}
    for name, schemes, default in (
        ("service.url", ("pulsar://", "pulsar+ssl://"), None),
        ("admin.url", ("http://", "https://"), _usual_admin(reader.text("service.url") or "")),
    ):
        text = reader.text(name) or default
        if text is None:
            reader.problems.append(f"{name} is required: {OPTIONS[name]}")
        elif not text.startswith(schemes):
            reader.problems.append(f"{name}={_shown(text)!r} does not begin with {' or '.join(schemes)}")
        values[name.replace(".", "_")] = text or ""
    if reader.flag("pulsar.client.useTls", False) and values["service_url"].startswith("pulsar://"):
        reader.problems.append(
            "pulsar.client.useTls=true: give service.url as pulsar+ssl://, with the port for TLS"
        )
    identity = identity_of(lambda name: reader.text(f"pulsar.client.{name}"), reader.problems)
    ca = reader.text("pulsar.client.tlsTrustCertsFilePath")
    values |= {
        "token": identity.token,
        "tls_ca": None if ca is None else Path(ca),
        "tls_certificate": None if identity.certificate is None else Path(identity.certificate),
        "tls_private_key": None if identity.key is None else Path(identity.key),
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


def _shown(url: str) -> str:
    """Return a URL without what may be a password in it."""
    scheme, mark, rest = url.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"


def _usual_admin(service_url: str) -> str | None:
    """Return where the admin usually is, beside the first broker; None for no service URL."""
    parts = urlsplit(service_url)
    try:
        host = urlsplit(f"//{parts.netloc.split(',')[0]}").hostname
    except ValueError:
        return None
    if not host or parts.scheme not in ("pulsar", "pulsar+ssl"):
        return None
    host = f"[{host}]" if ":" in host else host
    return f"https://{host}:8443" if parts.scheme == "pulsar+ssl" else f"http://{host}:8080"
