"""Ingest processes that share sessions: each takes only what no other live process has."""

from __future__ import annotations

import pytest

from bridge.errors import ConfigError
from bridge.protocols.sharing import GONE_S, STEADY_S, Beat, Peers
from bridge.routing.sharding import AUTO, Shard, own_sessions, sessions
from bridge.settings.loading import load

ALL = frozenset(range(4))
EVERY_S = 0.6


class World:
    """Two processes whose records arrive at once, unless one is frozen."""

    def __init__(self) -> None:
        self.now = 0.0
        self.has: dict[str, set[int]] = {}
        self.views: dict[str, Peers] = {}
        self.frozen: set[str] = set()

    def join(self, name: str) -> None:
        self.has[name] = set()
        self.views[name] = Peers(name, polite=True)

    def beat(self) -> None:
        """Every process advertises itself, and then does what its view says, at once."""
        running = [name for name in self.has if name not in self.frozen]
        for name in running:
            for peers in self.views.values():
                peers.reported(name, Beat(ALL, frozenset(self.has[name])), self.now)
        plans = {name: self.views[name].plan(Beat(ALL, frozenset(self.has[name])), self.now) for name in running}
        for name, plan in plans.items():
            if plan is not None:
                self.has[name] = {number for number, who in plan.items() if who == name}
        taken = [number for name in running for number in self.has[name]]
        assert len(taken) == len(set(taken)), f"two processes read one session: {self.has}"
        self.now += EVERY_S

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.beat()


def test_a_session_is_taken_only_after_its_reader_gave_it_up() -> None:
    world = World()
    world.join("a")
    world.run(GONE_S - EVERY_S)
    assert world.has["a"] == set(), "it does not know yet who else runs"
    world.run(2 * EVERY_S)
    assert world.has["a"] == set(ALL)
    world.join("b")
    world.run(STEADY_S + 3 * EVERY_S)
    assert [len(world.has[name]) for name in "ab"] == [2, 2]
    del world.has["a"]  # it died
    world.run(GONE_S + 2 * EVERY_S)
    assert world.has["b"] == set(ALL)


def test_a_process_that_was_frozen_gives_up_what_another_one_took() -> None:
    world = World()
    world.join("a")
    world.join("b")
    world.run(STEADY_S + 3 * EVERY_S)
    before = set(world.has["a"])
    world.frozen = {"a"}
    world.run(GONE_S + 3 * EVERY_S)
    assert world.has["b"] == set(ALL)
    beat = Beat(ALL, frozenset(before))  # as it is when it goes on: it has not noticed
    peers = world.views["a"]
    plans = []
    for _ in range(5):
        world.now += EVERY_S
        for name, one in (("b", Beat(ALL, ALL)), ("a", beat)):
            peers.reported(name, one, world.now)
        plans.append(peers.plan(beat, world.now))
    assert plans[0] is None, "its view is not certain yet"
    assert plans[-1] == dict.fromkeys(ALL, "b")


def test_auto_has_the_sessions_of_any_number_of_shards() -> None:
    sets = {"ingest.filters": ["a/#", "b/#", "c/#"]}
    auto = load(None, {"ingest.shard": AUTO} | sets)
    fixed = load(None, {"ingest.shard": "1/3"} | sets)
    assert sessions("x", auto.ingest, auto.pulsar) == sessions("x", fixed.ingest, fixed.pulsar)
    assert own_sessions("x", auto.ingest, auto.pulsar) == ("x-0", "x-1", "x-2")
    assert Shard.parse(AUTO) == Shard(0, 1)
    with pytest.raises(ConfigError, match="each worker of a shared subscription has its own session"):
        load(None, {"ingest.shard": AUTO, "ingest.share": "g"} | sets)


def test_a_process_that_was_frozen_for_a_moment_does_not_take_the_others_for_gone() -> None:
    peers = Peers("a", polite=True)
    for now in (0.0, 1.0, 2.0, 3.0, 4.0):
        peers.reported("b", Beat(ALL, frozenset({2, 3})), now)
        peers.reported("a", Beat(ALL, frozenset({0, 1})), now)
    assert peers.plan(Beat(ALL, frozenset({0, 1})), 4.5) is not None
    assert peers.plan(Beat(ALL, frozenset({0, 1})), 4.0 + GONE_S + 0.5) is None, "its own record is as old as theirs"
