"""How push processes share the partitions: evenly, each with the same result, with few moves, and without flapping."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from bridge.protocols.sharing import BLIND_S, FENCE_S, GONE_S, GROUPS, STEADY_S, Beat, Peers, assign

NAMES = ["a", "b", "c", "d", "e"]
ALL = frozenset(range(7)) | {GROUPS}

names = st.sets(st.sampled_from(NAMES), min_size=1)
numbers = st.integers(1, 40).map(range)
owners = st.dictionaries(st.integers(0, 39), st.sampled_from(NAMES))


def shares(found: dict[int, str], of: Iterable[str]) -> list[int]:
    """Return the sizes of the shares, the smallest first."""
    count = Counter(name for number, name in found.items() if number != GROUPS)
    return sorted(count[name] for name in of)


@given(names, numbers, owners)
def test_shares_differ_by_one_at_most_and_what_is_shared_evenly_stays(
    live: set[str], partitions: range, has: dict[int, str]
) -> None:
    may = dict.fromkeys(live, partitions)
    found = assign(may, has, live)
    assert found.keys() == set(partitions)
    sizes = shares(found, live)
    assert sizes[-1] - sizes[0] <= 1
    assert assign(may, found, live) == found
    backwards = {name: may[name] for name in sorted(may, reverse=True)}
    assert assign(backwards, dict(reversed(has.items())), sorted(live)) == found, (
        "the order of arrival counts for nothing"
    )


@given(names, numbers, owners)
def test_no_more_partitions_move_than_must(live: set[str], partitions: range, has: dict[int, str]) -> None:
    found = assign(dict.fromkeys(live, partitions), has, live)
    count = Counter(name for number, name in has.items() if number in partitions and name in live)
    least, rest = divmod(len(partitions), len(live))
    # The largest shares keep one more: no choice of who keeps it moves fewer.
    most = sorted((count[name] for name in live), reverse=True)
    must = sum(max(0, size - least - (place < rest)) for place, size in enumerate(most))
    stayed = sum(found[number] == name for number, name in has.items() if number in partitions and name in live)
    assert sum(count.values()) - stayed == must


@given(numbers, st.lists(st.tuples(st.sampled_from(NAMES), st.booleans()), max_size=20))
def test_processes_that_come_and_go_move_a_fair_share_each(partitions: range, events: list[tuple[str, bool]]) -> None:
    live, found = {"a"}, dict.fromkeys(partitions, "a")
    for name, comes in events:
        before, former = found, len(live)
        live = live | {name} if comes else (live - {name}) or live
        found = assign(dict.fromkeys(live, partitions), before, live)
        if len(live) > former:
            assert sum(before[n] != found[n] for n in partitions) == len(partitions) // len(live)
        else:
            assert all(before[n] == found[n] for n in partitions if before[n] in live)
        sizes = shares(found, live)
        assert sizes[-1] - sizes[0] <= 1


@given(names, owners, st.dictionaries(st.sampled_from(NAMES), st.sets(st.integers(0, 20)), min_size=1))
def test_a_process_gets_only_what_it_may_own(steady: set[str], has: dict[int, str], may: dict[str, set[int]]) -> None:
    found = assign(may, has, steady)
    assert found.keys() == {number for of in may.values() for number in of}
    assert all(number in may[name] for number, name in found.items())
    kept = {number: name for number, name in has.items() if number in may.get(name, ())}
    assert all(found[number] in (name, *steady) for number, name in kept.items())


@given(numbers, st.permutations(NAMES), st.data())
def test_hand_overs_that_are_half_done_change_no_plan_for_the_rest(
    partitions: range, order: list[str], data: st.DataObject
) -> None:
    """A hand-over takes seconds, and every process plans again at each record. It must come to an end, without detours."""
    has = {number: data.draw(st.sampled_from(order[:3]), label=str(number)) for number in partitions}
    may = dict.fromkeys(NAMES, partitions)
    moves = 0
    while True:
        plan = assign(may, has, NAMES)
        late = [number for number, name in plan.items() if has.get(number) != name]
        if not late:
            break
        number = data.draw(st.sampled_from(late))
        if number in has:
            del has[number]  # its owner has handed it over
            moves += 1
        else:
            has[number] = plan[number]
        assert moves <= len(partitions)
    sizes = shares(plan, NAMES)
    assert sizes[-1] - sizes[0] <= 1


def test_the_groups_count_for_no_share_and_stay_where_they_are() -> None:
    may = {"a": ALL - {6}, "b": ALL - {6}}
    found = assign(may, {GROUPS: "b"}, may)
    assert found[GROUPS] == "b"
    assert shares(found, may) == [3, 3]
    assert assign(may, {}, may)[GROUPS] == "a"


class World:
    """What one process sees of the others."""

    def __init__(self, me: str = "a") -> None:
        self.me = me
        self.peers = Peers(me)
        self.has: dict[str, frozenset[int]] = {}
        self.now = 100.0

    def beats(self, *alive: str, seconds: float = 0.0) -> None:
        """Let these processes report, and again every second."""
        end = self.now + seconds
        while True:
            for name in alive:
                self.peers.reported(name, Beat(ALL, self.has.get(name, frozenset())), self.now)
            if self.now >= end:
                return
            self.now += min(1.0, end - self.now)

    def mine(self) -> set[int] | None:
        plan = self.peers.plan(Beat(ALL, self.has.get(self.me, frozenset())), self.now)
        return {number for number, name in plan.items() if name == self.me} if plan else None


def test_a_process_that_does_not_see_its_own_record_is_blind() -> None:
    world = World()
    assert world.mine() is None
    world.beats("b")
    assert world.mine() is None
    world.beats("a")
    assert world.mine() is not None
    world.now += BLIND_S + 0.1
    world.beats("b")
    assert world.mine() is None
    assert world.peers.live(world.now) == []
    world.beats("a", "b")
    assert world.mine() is not None


def test_what_a_silent_process_had_is_for_the_others_at_once_and_it_is_fenced_later() -> None:
    world = World()
    world.has = {"a": frozenset({0, 1, 2, 3, GROUPS}), "b": frozenset({4, 5, 6})}
    world.beats("a", "b")
    assert world.mine() == {0, 1, 2, 3, GROUPS}
    world.beats("a", seconds=GONE_S - 0.1)
    assert world.mine() == {0, 1, 2, 3, GROUPS}
    world.beats("a", seconds=0.2)
    assert world.mine() == ALL
    assert not world.peers.is_silent(4, world.now)
    world.beats("a", seconds=FENCE_S - GONE_S + 0.1)
    assert world.peers.is_silent(4, world.now)
    assert not world.peers.is_silent(0, world.now)


def test_a_silence_of_pulsar_fences_no_process() -> None:
    world = World()
    world.has = {"b": frozenset({4, 5, 6})}
    world.beats("a", "b", seconds=60)
    world.now += FENCE_S + 1
    assert world.mine() is None
    world.beats("a")  # its record happens to be the first
    assert not world.peers.is_silent(4, world.now)
    world.beats("a", "b", seconds=60)
    assert not world.peers.is_silent(4, world.now)


def test_a_clean_end_frees_at_once_what_it_had() -> None:
    world = World()
    world.has["b"] = frozenset({4, 5, 6})
    world.beats("a", "b")
    world.peers.reported("b", None, world.now)
    assert world.mine() == ALL
    assert not world.peers.is_silent(4, world.now + 100)


def test_a_process_that_comes_and_goes_moves_nothing() -> None:
    world = World()
    world.has["a"] = ALL
    world.beats("a", seconds=60)
    for _ in range(5):
        world.beats("a", "b", seconds=STEADY_S - 0.5)
        assert world.mine() == ALL
        world.beats("a", seconds=GONE_S + 1)
        assert world.mine() == ALL
    world.beats("a", "b", seconds=STEADY_S + 0.1)
    assert world.mine() == {0, 1, 2, 3, GROUPS}


def test_the_report_of_a_process_that_was_frozen_takes_nothing_from_its_successor() -> None:
    for me in ("b", "c"):
        world = World(me)
        world.has = {"a": frozenset({0, 1, 2}), "b": frozenset({3, 4, GROUPS}), "c": frozenset({5, 6})}
        world.beats("a", "b", "c")
        world.has |= {"b": frozenset({0, 3, 4, GROUPS}), "c": frozenset({1, 2, 5, 6})}
        world.beats("b", "c", seconds=20)
        before = world.mine()
        world.beats("a", "b", "c")  # it goes on, and does not know yet
        assert world.mine() == before
        world.beats("a", "b", "c", seconds=STEADY_S + 0.1)
        wanted = world.mine()
        assert before is not None
        assert wanted is not None
        assert wanted < before, "from now on it gets its share again"


def test_a_process_that_stops_or_failed_to_take_over_keeps_nothing_from_the_others() -> None:
    world = World()
    world.beats("a")
    world.peers.reported("b", Beat(frozenset(), frozenset({0, 1})), world.now)
    world.peers.reported("c", Beat(ALL - {2}, frozenset({2})), world.now)
    mine = world.mine()
    assert mine is not None
    assert 2 in mine
    plan = world.peers.plan(Beat(ALL, frozenset()), world.now)
    assert plan is not None
    assert set(plan.values()) == {"a", "c"}
    unassigned = world.peers.plan(Beat(frozenset(), frozenset()), world.now)
    assert unassigned is not None
    assert 2 not in unassigned, "then each of them tries"
