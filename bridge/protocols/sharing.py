"""Decides which process each part of some work is for, from what the processes advertise.

The parts have numbers: the commands partitions that push processes share, or the MQTT sessions that ingest processes share.
Processes share them by advice alone: Pulsar's exclusive producer decides who owns a partition, the MQTT broker who has a
session. So a wrong or outdated view costs a vain try, or a part that moves in vain, and never a message.

- A process that advertises nothing for ``GONE_S`` is gone. The others divide what it had.
- A part moves from a live owner only if another process has two fewer, and only to one that is here for ``STEADY_S``.
  So a process that comes and goes takes nothing from the others.
- A process that does not see its own record come back is blind: its view is worth nothing. A push process holds what it owns,
  and tries to get all that no process owns. An ingest process only holds what it has.
- An MQTT broker gives a session to the last process that asks for it. So a process that is ``polite`` asks only for what no
  other live process has, and only once it has seen the records of all of them.
- An owner that is frozen, or whose host is lost, keeps its producer until Pulsar notices, in a minute or more. So a successor
  fences it after ``FENCE_S`` of silence.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from bridge.contract.decoding import checked_text, checked_wholes, decodes, json_record

__all__ = ["GROUPS", "PUSH_PROTOCOL", "SESSIONS_PROTOCOL", "Beat", "Peers", "assign", "names_share"]

PUSH_PROTOCOL: Final = "push"
"""The protocol under which a push process advertises its ``Beat``."""
SESSIONS_PROTOCOL: Final = "mqtt-sessions"
"""The same for an ingest process that shares MQTT sessions; after it comes a name of these."""
GROUPS: Final = -1
"""Stands beside the numbers of the partitions for giving group commands to their members."""
GONE_S: Final = 1.8
STEADY_S: Final = 3.0
"""More than ``GONE_S``: what the last record of a dead process says never moves a partition."""
BLIND_S: Final = 4.0
FENCE_S: Final = 8.0
_FORGET_S: Final = 600.0
_VERSION: Final = 1


def names_share(protocol: str) -> bool:
    """Whether a protocol of a record is a ``Beat``."""
    return protocol == PUSH_PROTOCOL or protocol.startswith(SESSIONS_PROTOCOL)


@dataclass(frozen=True, slots=True)
class Beat:
    """What a process advertises: numbers of partitions, and ``GROUPS``; or of MQTT sessions."""

    may: frozenset[int]
    """What it would own: none while it stops, only what it owns after a takeover that hung."""
    has: frozenset[int]
    """What it has the exclusive producer of; or the MQTT sessions that it reads."""
    away: frozenset[str] = frozenset()
    """The links whose MQTT brokers it cannot reach, of any partition that it owns."""

    def encode(self) -> str:
        """Return it as the data of a protocol's record."""
        body = {"may": sorted(self.may), "has": sorted(self.has), "away": sorted(self.away)}
        return json.dumps({"v": _VERSION} | body, separators=(",", ":"))

    @classmethod
    @decodes("the share of a process")
    def decode(cls, data: str) -> Beat:
        """Decode it. Raises ContractError."""
        body = json_record(data, "share of a process", [_VERSION])
        may, has = frozenset(checked_wholes(body["may"])), frozenset(checked_wholes(body["has"]))
        return cls(may, has, frozenset(checked_text(link) for link in list(body["away"])))


@dataclass(frozen=True, slots=True)
class _Peer:
    beat: Beat
    claims: Mapping[int, int]
    """What it has, to the number of the record that first reported it."""
    since: float
    last: float

    def live(self, now: float) -> bool:
        return now - self.last <= GONE_S


class Peers:
    """The processes as their records show them, this one included. Times are seconds of the monotonic clock here."""

    def __init__(self, me: str, *, polite: bool = False) -> None:
        """``polite``: nothing is for this process that another live one has."""
        self._me = me
        self._polite = polite
        self._peers: dict[str, _Peer] = {}
        self._records = 0

    def reported(self, name: str, beat: Beat | None, now: float) -> None:
        """A record of a process, None for a tombstone: it ended. The records come in the order of the topic.

        A process that was frozen still reports what it had. Its successor's report is newer, and counts.
        """
        known = self._peers.pop(name, None)
        self._records += 1
        if beat is not None:
            before = known.claims if known else {}
            claims = {number: before.get(number, self._records) for number in beat.has}
            self._peers[name] = _Peer(beat, claims, known.since if known and known.live(now) else now, now)
        for old in [old for old, peer in self._peers.items() if now - peer.last > _FORGET_S]:
            del self._peers[old]

    def live(self, now: float) -> list[str]:
        """Return the processes that run; none if this one is blind."""
        me = self._peers.get(self._me)
        if me is None or now - me.last > BLIND_S:
            return []
        return [name for name, peer in self._peers.items() if peer.live(now) or name == self._me]

    def plan(self, mine: Beat, now: float) -> dict[int, str] | None:
        """Return the process for each part; ``mine`` is the state of this one.

        A blind process knows no other: then the plan is empty. A polite one has no plan, also while it is new, and while
        its own record is as old as that of a process that is gone: perhaps this one was frozen.
        """
        live = self.live(now)
        if not live:
            return None if self._polite else {}
        me = self._peers[self._me]
        if self._polite and not (me.since <= now - GONE_S and me.live(now)):
            return None
        may = {name: self._peers[name].beat.may for name in live} | {self._me: mine.may}
        steady = [name for name in live if now - self._peers[name].since >= STEADY_S]
        if not self._polite:
            others = (name for name in live if name != self._me)
            return assign(may, self._holders(others) | dict.fromkeys(mine.has, self._me), steady)
        # The last one that reported a session has it, although this process may not have noticed that.
        reported = {n: name for n, name in self._holders(live).items() if name != self._me or n in mine.has}
        has = dict.fromkeys(mine.has, self._me) | reported
        return {n: has.get(n, name) if name == self._me else name for n, name in assign(may, has, steady).items()}

    def is_silent(self, number: int, now: float) -> bool:
        """Whether the process that has a partition, as far as is known, has been silent for long: it may be fenced."""
        holder = self._holders(self._peers).get(number)
        if holder is None or not self.live(now):
            return False
        since = self._peers[self._me].since  # else Pulsar was silent, not the process
        return now - max(self._peers[holder].last, since) > FENCE_S

    def _holders(self, names: Iterable[str]) -> dict[int, str]:
        """Return which of these processes has each partition: the one that reported it last."""
        claims = [(record, number, name) for name in names for number, record in self._peers[name].claims.items()]
        return {number: name for _, number, name in sorted(claims)}


def assign(may: Mapping[str, Collection[int]], has: Mapping[int, str], steady: Collection[str]) -> dict[int, str]:
    """Return the process for each partition that any may own.

    Shares differ by one at most, as far as ``may`` allows, and the fewest partitions move. ``has`` is the present owner of
    each; nothing moves from an owner to a process that is not ``steady``. The groups count for no share.
    """
    numbers = {number for of in may.values() for number in of}
    return _assign(numbers - {GROUPS}, may, has, steady) | _assign(numbers & {GROUPS}, may, has, steady)


def _assign(
    numbers: Iterable[int], may: Mapping[str, Collection[int]], has: Mapping[int, str], steady: Collection[str]
) -> dict[int, str]:
    found: dict[int, str] = {}
    shares: dict[str, set[int]] = {name: set() for name in sorted(may)}

    def least(name: str) -> tuple[int, str]:
        return len(shares[name]), name

    free = []
    for number in sorted(numbers):
        owner = has.get(number, "")
        if number in may.get(owner, ()):
            shares[owner].add(number)
        else:
            free.append(number)
    for number in free:
        shares[min((name for name in may if number in may[name]), key=least)].add(number)
    while (move := _move(shares, may, steady)) is not None:
        number, giver, taker = move
        shares[giver].remove(number)
        shares[taker].add(number)
    for name, share in shares.items():
        found |= dict.fromkeys(share, name)
    return found


def _move(
    shares: Mapping[str, set[int]], may: Mapping[str, Collection[int]], steady: Collection[str]
) -> tuple[int, str, str] | None:
    """Return a partition that makes the shares more even, with its giver and its taker."""
    for giver in sorted(shares, key=lambda name: (-len(shares[name]), name)):
        for taker in sorted(set(steady) & shares.keys(), key=lambda name: (len(shares[name]), name)):
            if len(shares[giver]) - len(shares[taker]) < 2:
                break
            given = shares[giver].intersection(may[taker])
            if given:
                return max(given), giver, taker
    return None
