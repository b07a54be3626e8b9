"""Which MQTT sessions ingest has, which of them each of several workers serves, and which must move. Pure.

Order per device holds when all topics that can meet in one Pulsar topic under one key are read by one worker. So the
filters must be disjoint; those that can meet there form a group, and each group has a session of its own, whose
client id follows from its place in the configuration. Worker I of N serves the sessions I, I+N, I+2N and so on:
another N deals the same sessions anew, nothing is subscribed or given up, and no session is left without a reader.

Sessions change only with the filters, or between one worker for all and shards (H7). A session keeps queueing at the
broker until it is deleted, and giving a filter up deletes what is queued at some brokers; so what is given up is
drained first, after its new owner has subscribed. ``plan_move`` says what there is to do, ``bridge.ingest.moving``
does it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from bridge.errors import ConfigError
from bridge.settings.ingest import IngestSettings
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.shard import Shard
from bridge.topic_patterns import Pattern, Star, meet
from bridge.topic_rules import CompiledRule, compile_rules, subscriptions, with_resume
from bridge.topic_templates import Filter

__all__ = [
    "MAX_SESSIONS",
    "Move",
    "Remembered",
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
"""Sessions of one deployment with shards, each with a thread of its own; further groups of filters share them."""

# --- filters to shards ------------------------------------------------------------------------------------------


def intersection(rule: Filter, other: Filter) -> Filter | None:
    """Return the topics that both match, with the names of ``rule``; None when there are none.

    Two MQTT filters meet in what one filter describes. ``a/#`` also matches ``a`` (MQTT-4.7.1-2).
    """
    levels: list[str | Star] = []
    names: list[str | None] = []
    a, b = rule.levels, other.levels
    for number in range(max(len(a), len(b))):
        x = a[number] if number < len(a) else None
        y = b[number] if number < len(b) else None
        if x is Star.REST or y is Star.REST:
            if x is None or y is None:
                break  # "a/#" with "a"
            # The other side's levels from here on; what a named rest captures is any text to the templates.
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


def _keys(rule: CompiledRule, of: Filter) -> tuple[Pattern, ...]:
    """The keys that ``rule`` can give to the topics of ``of``."""
    if rule.key_is_the_topic:
        return of.patterns
    parts: list[str | Star] = []
    fields = {f.name for f in rule.key.fields}
    for literal, name in rule.key.parts:
        if literal:
            parts.append(literal)
        if name is not None:
            star = None if name in fields else of.star_of(name)
            parts.append(Star.REST if star is None else star)
    return (tuple(parts),)


def _locals(rule: CompiledRule, of: Filter) -> Pattern:
    """The local names of the Pulsar topics that ``rule`` can give to the topics of ``of``."""
    found = replace(rule.topic, of=of)
    if any(of.star_of(name) is None for name in found.names):
        return (Star.REST,)
    return found.pattern(encoded=True)


@dataclass(frozen=True, slots=True)
class _Way:
    """What one filter's topics become under one rule."""

    namespaces: frozenset[str | None]
    local: Pattern
    keys: tuple[Pattern, ...]

    def meets(self, other: _Way) -> bool:
        return (
            bool(self.namespaces & other.namespaces)
            and meet(self.local, other.local)
            and any(meet(a, b) for a in self.keys for b in other.keys)
        )


def _ways(one: Filter, rules: Iterable[CompiledRule]) -> list[_Way]:
    found: list[_Way] = []
    for rule in rules:
        both = intersection(rule.filter, one)
        if both is not None:
            found.append(_Way(rule.namespaces, _locals(rule, both), _keys(rule, both)))
    return found


def _groups(filters: Sequence[str], ingest: IngestSettings, pulsar: PulsarSettings) -> list[list[str]]:
    """Return the filters in groups that do not meet in any Pulsar topic under one key, in the order of the filters."""
    rules, problems = compile_rules(ingest, pulsar)
    if problems:
        raise ConfigError("; ".join(problems))
    parsed = [Filter.parse(text) for text in filters]
    ways = [_ways(one, rules) for one in parsed]  # what no rule takes has the MQTT topic as its key
    group = list(range(len(filters)))
    for number, one in enumerate(parsed):
        for before in range(number):
            if any(meet(a, b) for a in one.patterns for b in parsed[before].patterns):
                raise ConfigError(
                    f"ingest.filters: {filters[before]!r} and {filters[number]!r} match the same topics, so two workers "
                    "would write them twice and out of order",
                    remedy="choose filters that have no topic in common, or run one worker",
                )
            if group[before] != group[number] and any(a.meets(b) for a in ways[number] for b in ways[before]):
                group = [group[before] if g == group[number] else g for g in group]
    return [[f for f, g in zip(filters, group, strict=True) if g == one] for one in dict.fromkeys(group)]


def split(ingest: IngestSettings, pulsar: PulsarSettings, count: int) -> list[tuple[str, ...]]:
    """Return the filters of each session of ``count`` shards. Raises ConfigError with the remedy when they are too few."""
    filters = subscriptions(ingest)
    if ingest.share is not None:
        return [sharing(with_resume(filters, ingest), ingest.share)] * count
    groups = _groups(filters, ingest, pulsar)
    if len(groups) < count:
        told = "; ".join(" with ".join(one) for one in groups)
        raise ConfigError(
            f"ingest.filters: {count} workers cannot divide {len(groups)} group{'s' if len(groups) > 1 else ''} of "
            f"filters ({told}), since all topics of a device belong to one worker",
            remedy="name more filters, each with devices of its own (plant/line1/#, plant/line2/#, with the line in "
            "the rule's device or topic), run fewer workers, or set ingest.share where the order per device does not "
            "matter",
        )
    sessions: list[list[str]] = [[] for _ in range(min(len(groups), max(count, MAX_SESSIONS)))]
    for number, one in enumerate(groups):
        sessions[number % len(sessions)] += one
    # Requests to resume meet nothing, and are few: the first session has them, whatever the count of shards.
    sessions[0] += with_resume(filters, ingest)[len(filters) :]
    return [tuple(one) for one in sessions]


def shard_problems(ingest: IngestSettings, pulsar: PulsarSettings) -> list[str]:
    """Return why ``ingest.shard`` cannot be, empty when it can. The rules themselves must be right."""
    try:
        sessions("", ingest, pulsar)
    except ConfigError as e:
        return [str(e)]
    return []


def sessions(family: str, ingest: IngestSettings, pulsar: PulsarSettings) -> dict[str, tuple[str, ...]]:
    """Return all sessions that a deployment has, over all its workers, with the filters that each subscribes to.

    They are named after the family: by its name where one worker reads all, else with the session's number behind it.
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
    """Return the filters as they are subscribed to: shared by ``group`` (MQTT 5, 4.8.2), or as they are."""
    return tuple(filters) if group is None else tuple(f"$share/{group}/{one}" for one in filters)


# --- sessions that move -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Remembered:
    """What is known of a session at the broker: whose it is, and the filters that it has, with their QoS."""

    family: str
    granted: Mapping[str, int]
    released: tuple[str, ...] = ()
    """Those of them that are drained and only have to be unsubscribed."""
    broker: str = ""
    """The address of the broker that has it."""
    client_id: str = ""
    """As whom it is dialled there."""


@dataclass(frozen=True, slots=True)
class Move:
    """What to do before any worker of the family reads, in this order (H7)."""

    gain: Mapping[str, tuple[str, ...]]
    """1. The filters that sessions lack, to be subscribed to first: from then on nothing is missed, some comes twice."""
    drain: Mapping[str, tuple[str, ...]]
    """2. The sessions to be drained, with the filters that they give up."""
    delete: frozenset[str]
    """3. Those of them that nobody serves any more."""


def plan_move(
    family: str,
    known: Mapping[str, Remembered],
    wanted: Mapping[str, tuple[str, ...]],
    *,
    former: Collection[str] = (),
) -> Move | None:
    """Return what must happen before the sessions of ``family`` are as ``wanted``; None when they may just start.

    ``former`` are families that it takes the place of.
    A session that only lacks filters subscribes to them by itself when it starts.
    """
    drain: dict[str, tuple[str, ...]] = {}
    for name, session in known.items():
        if session.family == family or session.family in former:
            kept = (*wanted.get(name, ()), *session.released)
            lost = tuple(f for f in session.granted if f not in kept)
            if lost or name not in wanted:
                drain[name] = lost
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
    """Return the sessions that nobody reads: they queue at the broker until they expire (H7).

    That is, the settings do not name them (``wanted``), nor does a process that lives serve them (``served``, as
    broker and client id).
    """
    return sorted(
        name
        for name, session in known.items()
        if name not in wanted and (session.broker, session.client_id) not in served
    )
