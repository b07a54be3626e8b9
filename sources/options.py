"""The options of ``format("pulsebridge")``: types, defaults, and refused options.

Names are those of the StreamNative connector, compared without case. An unknown one is refused with the nearest known
name. ``sources.option_names`` has all names; the modules that use an option define its effect.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bridge.contract import SOURCE_COLUMNS, base_topic
from bridge.errors import ConfigError
from bridge.settings.pulsar import PulsarSettings
from bridge.spark.connection_options import OptionReader, connection_options, pulsar_settings
from sources.bounds import EARLIEST, LATEST, StartingOffsets, offsets_of, times_of
from sources.option_names import ALIASES, INSTEAD, NO_EFFECT, ONLY, OPTIONS, REFUSED, SAME_AS_CLIENT
from sources.planning import Limits
from sources.topics import TopicsPattern, asked_topics

if TYPE_CHECKING:
    from sources.decoding import Decoding

__all__ = ["EARLIEST", "LATEST", "OPTIONS", "SourceOptions", "StartingOffsets", "connection_options", "parse"]

_KNOWN: Final = {name.lower(): name for name in OPTIONS}
_ALIASES: Final = {name.lower(): known for name, known in ALIASES.items()}
_NO_EFFECT: Final = {name.lower(): why for name, why in NO_EFFECT.items()}
_ONLY: Final = {name.lower(): (name, *rule) for name, rule in ONLY.items()}
_REFUSED: Final = {name.lower(): why for name, why in REFUSED.items()}
_INSTEAD: Final = {name.lower(): known for name, known in INSTEAD.items()}
_OF_ADMIN: Final = {f"pulsar.admin.{name}".lower(): f"pulsar.client.{name}" for name in SAME_AS_CLIENT}
_SPARK_OWN: Final = frozenset({"path"})
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True)
class SourceOptions:
    """The validated options of one reader."""

    pulsar: PulsarSettings
    topics: tuple[str, ...]
    starting: StartingOffsets
    ending: StartingOffsets
    columns: tuple[str, ...]
    limits: Limits
    pattern: TopicsPattern | None = None
    """Set if the topics are not named."""
    subscription: str | None = None
    reuse: str | None = None
    subscription_wait_s: float = 15.0
    fail_on_data_loss: bool = True
    wait_for_topics: bool = False
    min_partitions: int | None = None
    max_bytes_per_partition: int | None = None
    hot_tail_bytes: int = 16 * 1024 * 1024
    """Most bytes of the newest entries in the planner's memory, 0 for none."""
    read_idle_timeout_ms: int = 60_000
    decode: str = "none"
    """``none``, ``value`` or ``fields``."""
    null_undecodable: bool = False
    keys: str = "text"
    """``text``, ``bytes`` or ``base64``, as in ``sources.columns``."""
    decoding: Decoding | None = None
    """The result of ``decode``, after the topic's schema was read."""
    push_filters: bool | None = None
    """None: on if Spark does it safely."""
    slack_ms: int | None = _DAY_MS
    """How far publish times may be out of order if a filter skips entries. None: it skips none."""
    notes: tuple[str, ...] = ()
    """Given options without effect, a line each."""


def parse(given: Mapping[str, str], *, streaming: bool | None) -> SourceOptions:
    """Validate the options of a query; ``streaming`` is None while its kind is unknown.

    Raises ConfigError with all problems at once.
    """
    problems: list[str] = []
    notes: list[str] = []
    options = _recognised({name.lower(): value for name, value in given.items()}, problems, notes)
    reader = OptionReader(options, problems)
    topics, pattern = asked_topics(options, problems)
    starting, ending = _range(reader, streaming)
    if pattern is None:
        _refuse_unread_topics((starting, ending), topics, problems)
    subscription, reuse = _subscription(options, streaming, problems)
    columns = _columns(options, problems)
    pulsar = pulsar_settings(reader)
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
    tail = reader.integer("hotTailBytes", least=0)
    slack_ms = reader.integer("publishTimeSlackMs", least=-1)
    found: dict[str, Any] = {
        "min_partitions": reader.integer("minPartitions", least=1),
        "max_bytes_per_partition": reader.integer("maxBytesPerPartition", least=1),
        "fail_on_data_loss": reader.flag("failOnDataLoss", True),
        "wait_for_topics": reader.flag("waitingForNonExistedTopic", False),
        "subscription_wait_s": 15.0 if wait_ms is None else wait_ms / 1000,
        "hot_tail_bytes": 16 * 1024 * 1024 if tail is None else tail,
        "read_idle_timeout_ms": 60_000 if idle_ms is None else idle_ms,
        "slack_ms": _DAY_MS if slack_ms is None else None if slack_ms < 0 else slack_ms,
        "null_undecodable": reader.choice("decodeErrors", ("fail", "null")) == "null",
        "keys": reader.choice("keyEncoding", ("text", "base64")),
        "decode": _decoding(reader),
        "push_filters": None if reader.text("pushFilters") is None else reader.flag("pushFilters", False),
    }
    if problems or pulsar is None:
        raise ConfigError('format("pulsebridge"): ' + "; ".join(problems), remedy="correct the options of the query")
    return SourceOptions(
        pulsar, topics, starting, ending, columns, limits, pattern, subscription, reuse, notes=tuple(notes), **found
    )  # fmt: skip


def _decoding(reader: OptionReader) -> str:
    """Return how to decode ``value``; StreamNative's ``allowDifferentTopicSchemas`` asks for the raw bytes."""
    asked = reader.choice("decode", ("none", "value", "fields"))
    if reader.flag("allowDifferentTopicSchemas", False) and asked != "none":
        reader.problems.append(
            f"allowDifferentTopicSchemas=true asks for the raw bytes, decode={asked} for the topic's schema"
        )
    return asked


def _range(reader: OptionReader, streaming: bool | None) -> tuple[StartingOffsets, StartingOffsets]:
    """Return where the query begins and ends."""
    if streaming:
        for name in ("endingOffsets", "endingTime"):
            if reader.text(name) is not None:
                reader.problems.append(f"{name}: a streaming query has no end; use spark.read, or Trigger.AvailableNow")
    starting = _bound(reader, "starting", LATEST if streaming else EARLIEST)
    ending = _bound(reader, "ending", LATEST)
    if starting.time_ms is not None and ending.time_ms is not None and ending.time_ms < starting.time_ms:
        reader.problems.append("endingTime is before startingTime")
    return starting, ending


def _bound(reader: OptionReader, which: str, default: str) -> StartingOffsets:
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


def _refuse_unread_topics(asked: tuple[StartingOffsets, ...], topics: tuple[str, ...], problems: list[str]) -> None:
    unread = {name for of in asked for name in of.bounds if not {name, base_topic(name)} & set(topics)}
    if unread and topics:
        problems.append(
            "offsets or times are given for topics that the query does not read: " + ", ".join(sorted(unread))
        )


def _recognised(options: Mapping[str, str], problems: list[str], notes: list[str]) -> dict[str, str]:
    """Return the options with an effect, by our names in lower case."""
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
            notes.append(f"{name} has no effect: {why}")
        elif name in _ONLY:
            shown, only, why = _ONLY[name]
            if value.strip().lower() != only.lower():
                problems.append(f"{shown}={value!r}: {why}")
        elif name not in _SPARK_OWN:
            problems.append(_unknown(name))
    return found


def _same(options: Mapping[str, str], name: str, problems: list[str], found: dict[str, str]) -> None:
    """Apply an option of the admin to both URLs, which share identity and trust. It must equal the client's."""
    client = _OF_ADMIN[name]
    if options.get(client.lower(), options[name]) != options[name]:
        problems.append(f"{name} differs from {client}: one identity serves both URLs; give the one that may do both")
    found.setdefault(client.lower(), options[name])


def _unknown(name: str) -> str:
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
    """Return the name, and what to do if another checkpoint used it before."""
    subscription = options.get("predefinedsubscription", "").strip() or None
    if subscription is None:
        subscription = options.get("subscriptionprefix", "").strip() or None
    if streaming and subscription is None:
        problems.append(
            "predefinedSubscription is required for streaming: the durable subscription of this name retains unread "
            "messages in Pulsar; give each query another name"
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
        # The fields of a record are unknown until its schema is read.
        if name not in known and options.get("decode", "").strip().lower() != "fields":
            near = difflib.get_close_matches(name, known, n=1)
            problems.append(f"columns: no column {name!r}" + (f", did you mean {near[0]}?" if near else ""))
    if not asked:
        problems.append("columns: give at least one name")
    return tuple(asked)
