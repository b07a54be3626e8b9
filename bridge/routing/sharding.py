"""Decides the MQTT sessions of ingest, the worker of each session, and their migration.

To keep the order per device, one worker reads all topics that can have the same Pulsar topic and key. So filters must
be disjoint. Filters whose topics can have the same Pulsar topic and key form a group, and each group has its own
session. The client id of a session follows from its number in the configuration. Worker I of N serves the sessions I,
I+N, I+2N and so on. Another N distributes the same sessions to other workers, without a change of subscriptions, so
each session has a reader. With ``AUTO`` the running workers share the sessions by themselves
(``bridge.protocols.sharing``), so their number may change while they run.

Sessions change only with the filters, or between one worker and shards (H7). The broker queues for a session until it
is deleted, and some brokers delete queued messages at UNSUBSCRIBE. So a removed filter or session is drained first,
after its new owner has subscribed. ``plan_move`` decides the steps, ``bridge.ingest.moving`` executes them.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from bridge.errors import ConfigError
from bridge.routing.patterns import Pattern, Star, meet
from bridge.routing.rules import CompiledRule, compile_rules, subscriptions, with_resume
from bridge.routing.templates import Filter

if TYPE_CHECKING:
    from bridge.settings.ingest import IngestSettings
    from bridge.settings.pulsar import PulsarSettings

__all__ = [
    "AUTO",
    "MAX_SESSIONS",
    "Move",
    "Remembered",
    "Shard",
    "intersection",
    "own_sessions",
    "plan_move",
    "sessions",
    "shard_problems",
    "sharing",
    "split",
    "unserved",
]

MAX_SESSIONS: Final = 64
"""Maximum number of sessions of a deployment with shards; each has a thread. Further groups of filters share sessions.
"""

AUTO: Final = "auto"
"""The shard of workers that share the sessions by themselves."""

_FORM: Final = re.compile(r"(\d{1,4}|host)/(\d{1,4})\Z")
_ORDINAL: Final = re.compile(r"-(\d{1,4})\Z")


@dataclass(frozen=True, slots=True)
class Shard:
    """Worker ``index`` of ``count``, counted from 0, as in a setting or in ``--shard``."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str, *, host: str | None = None) -> Shard:
        """Read ``I/N``, ``host/N`` or ``auto``. Raises ValueError with the remedy.

        With ``host`` the index is the number at the end of the host's name, as in the names of a StatefulSet's pods. With
        ``auto`` a worker may serve every session.
        """
        if text == AUTO:
            return cls(0, 1)
        found = _FORM.match(text)
        if found is None:
            raise ValueError(f"{text!r} is neither {AUTO} nor of the form I/N, for example 0/4")
        count = int(found[2])
        if found[1] != "host":
            index = int(found[1])
        else:
            name = socket.gethostname() if host is None else host
            ordinal = _ORDINAL.search(name.partition(".")[0])
            if ordinal is None:
                raise ValueError(
                    f"{text!r}: the host name {name!r} does not end in a number: run it as a pod of a StatefulSet, "
                    "or give the number, for example 0/4"
                )
            index = int(ordinal[1])
        if index >= count:
            raise ValueError(
                f"{text!r}: shard {index} of {count} does not exist, they are counted from 0 to {count - 1}"
            )
        return cls(index, count)


# --- filters to shards ------------------------------------------------------------------------------------------


def intersection(rule: Filter, other: Filter) -> Filter | None:
    """Return the filter of the topics that both match, with the names of ``rule``, or None.

    The intersection of two MQTT filters is one filter. ``a/#`` also matches ``a`` (MQTT-4.7.1-2).
    """
    levels: list[str | Star] = []
    names: list[str | None] = []
    a, b = rule.levels, other.levels
    for number, (x, y) in enumerate(zip_longest(a, b)):
        if x is Star.REST or y is Star.REST:
            if x is None or y is None:
                break  # "a/#" with "a"
            # The other side's levels from this number on; for templates a named rest captures any text.
            tail = b[number:] if x is Star.REST else a[number:]
            tail_names = (None,) * len(tail) if x is Star.REST else rule.names[number:]
            if x is Star.REST and len(tail) == 1 and isinstance(tail[0], Star):
                tail_names = (rule.names[number],)
            return Filter("", (*levels, *tail), (*names, *tail_names))
        if x is None or y is None:
            return None
        if isinstance(x, str) and isinstance(y, str) and x != y:
            return None
        levels.append(x if isinstance(x, str) else y)
        names.append(rule.names[number])
    return Filter("", tuple(levels), tuple(names))


@dataclass(frozen=True, slots=True)
class _Targets:
    """The Pulsar topics and keys of one filter's topics under one rule."""

    namespaces: frozenset[str | None]
    local: Pattern
    keys: tuple[Pattern, ...]

    def meets(self, other: _Targets) -> bool:
        return (
            bool(self.namespaces & other.namespaces)
            and meet(self.local, other.local)
            and any(meet(a, b) for a in self.keys for b in other.keys)
        )


def _targets(one: Filter, rules: Iterable[CompiledRule]) -> list[_Targets]:
    found: list[_Targets] = []
    for rule in rules:
        both = intersection(rule.filter, one)
        if both is not None:
            topic, key = replace(rule.topic, of=both), replace(rule.key, of=both)
            keys = both.patterns if rule.key_is_the_topic else (key.pattern(),)
            found.append(_Targets(rule.namespaces, topic.pattern(encoded=True), keys))
    return found


def _groups(filters: Sequence[str], ingest: IngestSettings, pulsar: PulsarSettings) -> list[list[str]]:
    """Return the filters in groups, in order. Two groups never have the same Pulsar topic and key."""
    rules, problems = compile_rules(ingest, pulsar)
    if problems:
        raise ConfigError("; ".join(problems))
    parsed = [Filter.parse(text) for text in filters]
    targets = [_targets(one, rules) for one in parsed]  # topics without a rule have the MQTT topic as their key
    group = list(range(len(filters)))
    for number, one in enumerate(parsed):
        for before in range(number):
            if any(meet(a, b) for a in one.patterns for b in parsed[before].patterns):
                raise ConfigError(
                    f"ingest.filters: {filters[before]!r} and {filters[number]!r} match the same topics, so two "
                    "workers would write them twice and out of order",
                    remedy="choose filters that have no topic in common, or run one worker",
                )
            if group[before] != group[number] and any(a.meets(b) for a in targets[number] for b in targets[before]):
                group = [group[before] if g == group[number] else g for g in group]
    return [[f for f, g in zip(filters, group, strict=True) if g == one] for one in dict.fromkeys(group)]


def split(ingest: IngestSettings, pulsar: PulsarSettings, count: int) -> list[tuple[str, ...]]:
    """Return the filters of each session of ``count`` shards.

    Raises ConfigError with the remedy if there are too few filters.
    """
    filters = subscriptions(ingest)
    if ingest.share is not None and ingest.shard == AUTO:
        raise ConfigError(
            f"ingest.shard is {AUTO} and ingest.share is set: each worker of a shared subscription has its own session",
            remedy="give the number of workers: --shard I/N, or host/N in a StatefulSet; or remove ingest.share",
        )
    if ingest.share is not None:
        return [sharing(with_resume(filters, ingest), ingest.share)] * count
    groups = _groups(filters, ingest, pulsar)
    if len(groups) < count:
        listed = "; ".join(" with ".join(one) for one in groups)
        raise ConfigError(
            f"ingest.filters: {count} workers cannot divide {len(groups)} group{'s' if len(groups) > 1 else ''} of "
            f"filters ({listed}), because all topics of a device belong to one worker",
            remedy="give more filters with different devices (plant/line1/#, plant/line2/#, with the line in the "
            "rule's device or topic). Or run fewer workers, or set ingest.share if the order per device does not "
            "matter",
        )
    sessions: list[list[str]] = [[] for _ in range(min(len(groups), max(count, MAX_SESSIONS)))]
    for number, one in enumerate(groups):
        sessions[number % len(sessions)] += one
    # Resume requests have no readings topic and are few: the first session has them for any count of shards.
    sessions[0] += with_resume(filters, ingest)[len(filters) :]
    return [tuple(one) for one in sessions]


def shard_problems(ingest: IngestSettings, pulsar: PulsarSettings) -> list[str]:
    """Return the problems of ``ingest.shard``. The rules must be valid."""
    try:
        sessions("", ingest, pulsar)
    except ConfigError as e:
        return [str(e)]
    return []


def sessions(family: str, ingest: IngestSettings, pulsar: PulsarSettings) -> dict[str, tuple[str, ...]]:
    """Return all sessions of a deployment, over all its workers, with the filters of each.

    If one worker reads all, the session has the name of the family. Otherwise the session's number follows it.
    """
    if ingest.shard is None:
        return {family: sharing(with_resume(subscriptions(ingest), ingest), ingest.share)}
    found = split(ingest, pulsar, Shard.parse(ingest.shard).count)
    return {f"{family}-{number}": filters for number, filters in enumerate(found)}


def own_sessions(family: str, ingest: IngestSettings, pulsar: PulsarSettings) -> tuple[str, ...]:
    """Return the names of the sessions that this worker serves."""
    names = tuple(sessions(family, ingest, pulsar))
    if ingest.shard is None:
        return names
    shard = Shard.parse(ingest.shard)
    return names[shard.index :: shard.count]


def sharing(filters: Sequence[str], group: str | None) -> tuple[str, ...]:
    """Return the filters for SUBSCRIBE: shared by ``group`` (MQTT 5, 4.8.2), or unchanged."""
    return tuple(filters) if group is None else tuple(f"$share/{group}/{one}" for one in filters)


# --- sessions that move -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Remembered:
    """The known state of a session at the broker: its family, and its filters with their QoS."""

    family: str
    granted: Mapping[str, int]
    released: tuple[str, ...] = ()
    """Its drained filters, which are only to be unsubscribed."""
    broker: str = ""
    """The address of its broker."""
    client_id: str = ""
    """Its client id at that broker."""


@dataclass(frozen=True, slots=True)
class Move:
    """The steps before any worker of the family reads, in this order (H7)."""

    gain: Mapping[str, tuple[str, ...]]
    """1. The missing filters of sessions. After SUBSCRIBE no message is lost, some are duplicates."""
    drain: Mapping[str, tuple[str, ...]]
    """2. The sessions to be drained, with the filters to be removed."""
    delete: frozenset[str]
    """3. The drained sessions that the settings do not contain."""


def plan_move(
    family: str,
    known: Mapping[str, Remembered],
    wanted: Mapping[str, tuple[str, ...]],
    *,
    former: Collection[str] = (),
) -> Move | None:
    """Return the steps from the known sessions of ``family`` to the ``wanted`` ones, or None.

    ``former`` are the families that it replaces. A session that only lacks filters subscribes to them at its start.
    """
    drain: dict[str, tuple[str, ...]] = {}
    for name, session in known.items():
        if session.family == family or session.family in former:
            remaining = (*wanted.get(name, ()), *session.released)
            removed = tuple(f for f in session.granted if f not in remaining)
            if removed or name not in wanted:
                drain[name] = removed
    if not drain:
        return None
    gain: dict[str, tuple[str, ...]] = {}
    for name, filters in wanted.items():
        lacks = tuple(f for f in filters if name not in known or f not in known[name].granted)
        if lacks:
            gain[name] = lacks
    return Move(gain, drain, frozenset(drain) - frozenset(wanted))


def unserved(
    known: Mapping[str, Remembered], wanted: Collection[str], served: Collection[tuple[str, str]]
) -> list[str]:
    """Return the sessions without a reader: the broker queues for them until they expire (H7).

    The settings do not contain them (``wanted``), and no running process serves them (``served``, as broker and client
    id).
    """
    return sorted(
        name
        for name, session in known.items()
        if name not in wanted and (session.broker, session.client_id) not in served
    )
