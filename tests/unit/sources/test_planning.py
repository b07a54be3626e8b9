"""Planning covers each entry exactly once, whatever the ledgers do between two snapshots."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.contract import Position
from sources.planning import Ledger, Limits, PartitionView, in_force, losses, plan, split

HOLD = "query"


@dataclass
class FakeLedgers:
    """A partition as Pulsar keeps it: entries go to the last ledger, ledgers roll over, acknowledged ones go."""

    name: str
    ledgers: list[list[int]] = field(default_factory=lambda: [[10, 0]])  # id, entries
    held: Position = field(default_factory=lambda: Position(10, -1))
    next_id: int = 11

    def publish(self, count: int) -> None:
        self.ledgers[-1][1] += count

    def roll_over(self) -> None:
        # Pulsar drops an empty ledger when it opens the next one.
        if self.ledgers[-1][1] == 0:
            self.ledgers.pop()
        self.ledgers.append([self.next_id, 0])
        self.next_id += 2

    def trim(self) -> None:
        while len(self.ledgers) > 1:
            number, entries = self.ledgers[0]
            if self.held < Position(number, entries - 1):
                return
            self.ledgers.pop(0)
            self.held = max(self.held, Position(self.ledgers[0][0], -1))

    def view(self) -> PartitionView:
        return PartitionView(self.name, tuple(Ledger(i, n, 100 * n) for i, n in self.ledgers), {HOLD: self.held})

    def entries(self) -> list[Position]:
        return [Position(i, e) for i, n in self.ledgers for e in range(n)]


step = st.one_of(
    st.tuples(st.just("publish"), st.integers(0, 2), st.integers(1, 9)),
    st.tuples(st.just("roll"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("trim"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("trigger"), st.just(0), st.integers(1, 12)),
    st.tuples(st.just("replay"), st.just(0), st.just(0)),
)


def covered(view: PartitionView, start: Position, end: Position) -> list[Position]:
    return [Position(s.ledger, e) for s in view.segments(start, end) for e in range(s.first, s.stop)]


@given(st.lists(step, max_size=60))
@settings(deadline=None, max_examples=300)
def test_every_entry_is_planned_exactly_once_whatever_the_ledgers_do(
    steps: list[tuple[str, int, int]],
) -> None:
    world = {f"p{n}": FakeLedgers(f"p{n}") for n in range(3)}
    at = {name: p.view().start for name, p in world.items()}
    written: dict[str, list[Position]] = {name: [] for name in world}
    planned: dict[str, list[Position]] = {name: [] for name in world}

    def trigger(limit: int | None) -> None:
        nonlocal at
        views = {name: p.view() for name, p in world.items()}
        assert losses(views, at, HOLD) == []
        ends = plan(views, at, Limits(entries=limit))
        taken = 0
        for name, end in ends.items():
            got = covered(views[name], at[name], end)
            assert (end == at[name]) == (not got), "an offset changes when data advances, and only then"
            planned[name] += got
            taken += len(got)
            last = views[name].last_before(end)
            if last is not None:  # commit
                world[name].held = max(world[name].held, last)
        if limit is not None:
            assert taken <= max(limit, len(world))
        at = ends

    for kind, number, count in steps:
        partition = world[f"p{number}"]
        if kind == "publish":
            before = set(partition.entries())
            partition.publish(count)
            written[partition.name] += [p for p in partition.entries() if p not in before]
        elif kind == "roll":
            partition.roll_over()
        elif kind == "trim":
            partition.trim()
        elif kind == "trigger":
            trigger(count)
        else:
            trigger(None)
    trigger(None)
    assert planned == written


@given(st.integers(1, 30), st.lists(st.integers(0, 40), min_size=1, max_size=6))
@settings(deadline=None)
def test_a_limit_gives_every_partition_with_a_backlog_at_least_one_entry(limit: int, sizes: list[int]) -> None:
    views = {f"p{n}": PartitionView(f"p{n}", (Ledger(5, size, size * 10),)) for n, size in enumerate(sizes)}
    start = {name: Position(5, 0) for name in views}
    ends = plan(views, start, Limits(entries=limit))
    for n, size in enumerate(sizes):
        assert (ends[f"p{n}"].entry >= 1) == (size > 0)
    assert sum(end.entry for end in ends.values()) <= max(limit, len(sizes))


def test_limits_by_bytes_and_rows_are_kept_and_shared_by_backlog() -> None:
    views = {
        "a": PartitionView("a", (Ledger(1, 100, 10_000),)),
        "b": PartitionView("b", (Ledger(2, 300, 30_000),)),
    }
    start = {"a": Position(1, 0), "b": Position(2, 0)}
    assert plan(views, start, Limits(size=4_000)) == {"a": Position(1, 10), "b": Position(2, 29)}
    rows = {"a": 10.0, "b": 10.0}
    assert plan(views, start, Limits(rows=400), rows_per_entry=rows) == {
        "a": Position(1, 10),
        "b": Position(2, 29),
    }


def test_the_limit_in_force_is_the_one_that_allows_least() -> None:
    views = {"a": PartitionView("a", (Ledger(1, 100, 10_000),))}
    start = {"a": Position(1, 0)}
    both = Limits(entries=50, size=1_000)
    assert in_force(views, start, both) == "maxBytesPerTrigger=1000"
    assert in_force(views, start, Limits(rows=500), rows_per_entry={"a": 10.0}) == "maxRowsPerTrigger=500"
    assert in_force(views, start, Limits(entries=100)) == "none", "all that waits is taken"
    assert in_force(views, start, both, ceiling={"a": Position(1, 5)}) == "none"
    assert in_force({}, start, both) == "none"


def test_few_rows_wait_for_more_but_not_longer_than_the_delay() -> None:
    limits = Limits(least_rows=10, delay_s=60)
    assert limits.waits_for(9, 59)
    assert not limits.waits_for(10, 0)
    assert not limits.waits_for(1, 60)
    assert not Limits().waits_for(0, 0)


def test_available_now_reads_to_the_noted_end_and_no_further() -> None:
    view = PartitionView("a", (Ledger(1, 10, 10), Ledger(3, 10, 10)))
    ceiling = {"a": Position(3, 2)}
    at = {"a": Position(1, 8)}
    at = plan({"a": view}, at, Limits(entries=3), ceiling=ceiling)
    assert at == {"a": Position(3, 1)}
    at = plan({"a": view}, at, Limits(entries=3), ceiling=ceiling)
    assert at == {"a": Position(3, 2)}
    assert plan({"a": view}, at, Limits(entries=3), ceiling=ceiling) == at


def test_h16_the_end_of_a_ledger_and_the_start_of_the_next_are_one_position() -> None:
    """An unchanged position is never a new batch, in any of its texts."""
    rolled = PartitionView("a", (Ledger(1, 5, 50), Ledger(2, 0, 0)))
    assert plan({"a": rolled}, {"a": Position(1, 5)}, Limits()) == {"a": Position(1, 5)}
    assert plan({"a": rolled}, {"a": Position(2, 0)}, Limits()) == {"a": Position(2, 0)}
    assert rolled.segments(Position(1, 5)) == rolled.segments(Position(2, 0)) == ()


def test_h16_only_an_entry_that_exists_is_acknowledged() -> None:
    view = PartitionView("a", (Ledger(1, 5, 50), Ledger(2, 0, 0), Ledger(4, 3, 30)))
    assert view.last_before(Position(1, 3)) == Position(1, 2)
    assert view.last_before(Position(2, 0)) == Position(1, 4)
    assert view.last_before(Position(4, 0)) == Position(1, 4)
    assert view.last_before(Position(4, 9)) == Position(4, 2)
    assert view.last_before(Position(1, 0)) is None


def test_entries_that_expired_under_the_retention_subscription_are_a_loss() -> None:
    start = {"a": Position(1, 5)}

    def seen(held: Position | None) -> list[str]:
        view = PartitionView("a", (Ledger(7, 5, 50),), {} if held is None else {HOLD: held})
        return losses({"a": view}, start, HOLD)

    assert seen(Position(1, 4)) == []
    assert seen(Position(7, -1)) == []
    assert "ledger 1 of the offset is gone" in seen(Position(7, 2))[0]
    assert seen(None)
    assert losses({}, start, HOLD) == ["a: the partition no longer exists"]


@given(st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(1, 12))
@settings(deadline=None)
def test_split_ranges_cover_the_range_in_order(sizes: list[int], parts: int) -> None:
    view = PartitionView("a", tuple(Ledger(n, size, size) for n, size in enumerate(sizes)))
    segments = view.segments(Position(0, 0))
    pieces = split(segments, parts)
    flat = [(s.ledger, e) for piece in pieces for s in piece for e in range(s.first, s.stop)]
    assert flat == [(s.ledger, e) for s in segments for e in range(s.first, s.stop)]
    assert len(pieces) == min(parts, sum(sizes))
    lengths = [sum(s.entries for s in piece) for piece in pieces]
    assert max(lengths) - min(lengths) <= 1


def test_what_precedes_a_range_is_bounded() -> None:
    view = PartitionView("a", (Ledger(1, 5, 5), Ledger(2, 5, 5)))
    assert [(s.ledger, s.first, s.stop) for s in view.preceding(Position(2, 2), 4)] == [(1, 3, 5), (2, 0, 2)]
    assert view.preceding(Position(1, 0), 4) == ()
