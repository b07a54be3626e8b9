from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkplug.nodes import GAP, REPEAT, STALE, UNBORN, Arrival, Births, NodeState, Verdict, step

SECOND_US = 1_000_000
EVERY_US = 60 * SECOND_US


class Node:
    """A node's state, fed with messages a second apart."""

    def __init__(self) -> None:
        self.state = NodeState()
        self.now_us = 0
        self.count = 0

    def __call__(
        self, kind: str, seq: int | None = None, device: str | None = None, bd_seq: int | None = None, digest: int = 0
    ) -> Verdict:
        self.now_us += SECOND_US
        self.count += 1
        return step(self.state, Arrival(kind, device, seq, bd_seq, digest or self.count, self.now_us), EVERY_US)


def events(verdict: Verdict) -> list[tuple[str, str | None]]:
    return [(one.event, one.device) for one in verdict.events]


def born(bd_seq: int = 0) -> Node:
    node = Node()
    node("NBIRTH", 0, bd_seq=bd_seq)
    return node


@pytest.mark.tck(
    "tck-id-operational-behavior-edge-node-termination-host-action-ddeath-devices-offline",
    "tck-id-operational-behavior-edge-node-termination-host-action-ndeath-devices-offline",
    "tck-id-operational-behavior-edge-node-termination-host-action-ndeath-node-offline",
)  # fmt: skip
def test_a_session_from_birth_to_death() -> None:
    node = Node()
    assert node("NBIRTH", 0, bd_seq=3) == Verdict(None, (("online", None, None),), learns=True, clears=True)  # type: ignore[comparison-overlap]
    assert events(node("DBIRTH", 1, "D")) == [("online", "D")]
    assert node("NDATA", 2) == node("DDATA", 3, "D") == Verdict(None)
    assert events(node("DDEATH", 4, "D")) == [("offline", "D")]
    assert events(node("DBIRTH", 5, "D")) == [("online", "D")]
    assert events(node("NDEATH", bd_seq=3)) == [("offline", None), ("offline", "D")]


def test_seq_wraps_at_255() -> None:
    node = born()
    assert {node("NDATA", n % 256).mark for n in range(1, 1000)} == {None}


def test_a_gap_marks_what_follows_until_the_next_node_birth() -> None:
    node = born()
    found = node("NDATA", 2)
    assert (found.mark, events(found)) == (GAP, [("gap", None), ("rebirth", None)])
    assert node("NDATA", 3) == Verdict(GAP)
    assert node("DBIRTH", 4, "D").mark == GAP
    assert node("NBIRTH", 0, bd_seq=0).mark is None
    assert node("NDATA", 1) == Verdict(None)


def test_data_before_a_birth_is_marked_and_requests_one() -> None:
    node = Node()
    found = node("NDATA", 7)
    assert (found.mark, events(found)) == (UNBORN, [("rebirth", None)])
    assert node("DBIRTH", 8, "D").mark == UNBORN
    assert node("DDATA", 9, "D").mark == UNBORN
    node("NBIRTH", 0, bd_seq=0)
    assert node("DDATA", 1, "D").mark == UNBORN
    assert node("DBIRTH", 2, "D").mark is None
    assert node("DDATA", 3, "D").mark is None


def test_data_after_the_death_is_before_a_birth() -> None:
    node = born()
    node("NDEATH", bd_seq=0)
    assert node("NDATA", 1).mark == UNBORN


def test_rebirth_requests_are_due_once_in_the_period_for_as_long_as_it_is_needed() -> None:
    node = born()
    due = [n for n in range(2, 250) if ("rebirth", None) in events(node("NDATA", n))]
    assert due == [2, 62, 122, 182, 242]
    node("NBIRTH", 0, bd_seq=0)
    assert not any(events(node("NDATA", n)) for n in range(1, 200))


def test_a_late_death_of_an_earlier_session_is_ignored() -> None:
    node = born(4)
    node("DBIRTH", 1, "D")
    node("NBIRTH", 0, bd_seq=5)
    node("DBIRTH", 1, "D")
    found = node("NDEATH", bd_seq=4)
    assert (found.mark, events(found)) == (STALE, [("stale", None)])
    assert node("DDATA", 2, "D") == Verdict(None)


def test_bdseq_may_be_missing() -> None:
    node = born()
    assert events(node("NDEATH")) == [("offline", None)]
    assert node("NDEATH") == Verdict(REPEAT)


def test_a_new_session_ends_the_devices_of_the_last_one_a_rebirth_does_not() -> None:
    node = born(1)
    node("DBIRTH", 1, "D")
    assert node("NBIRTH", 0, bd_seq=1) == Verdict(None, (("online", None, "rebirth"),), learns=True)  # type: ignore[comparison-overlap]
    assert node("DDATA", 1, "D").mark is None
    found = node("NBIRTH", 0, bd_seq=2)
    assert (events(found), found.clears) == ([("offline", "D"), ("online", None)], True)


def test_a_second_copy_is_a_repeat_and_changes_nothing() -> None:
    node = Node()
    sent = [("NBIRTH", 0), ("NDATA", 1), ("NDATA", 2), ("NDATA", 3)]
    for n, (kind, seq) in enumerate(sent):
        assert node(kind, seq, bd_seq=0, digest=50 + n).mark is None
    before = node.state.to_json()
    for n, (kind, seq) in enumerate(sent[:3]):
        assert node(kind, seq, bd_seq=0, digest=50 + n) == Verdict(REPEAT)
    assert node.state.to_json() == before
    assert node("NDATA", 4).mark is None


def test_a_seq_that_is_missing_or_too_large_shows_no_order() -> None:
    for seq in (None, 256, 2**62):
        node = born()
        assert node("NDATA", seq).mark == GAP
        assert node("NBIRTH", seq, bd_seq=0).mark == GAP


def test_the_bytes_of_device_ids_are_bounded() -> None:
    node = born()
    for n in range(1, 200):
        node("DBIRTH", n % 256, f"{n}" * 4000)
    assert len(node.state.to_json()) < 2_000_000
    assert node("DBIRTH", 200, "one more" * 100_000).learns is False


_arrivals = st.lists(
    st.builds(
        Arrival,
        kind=st.sampled_from(["NBIRTH", "NDATA", "NDEATH"]),
        device=st.none(),
        seq=st.none() | st.integers(0, 300),
        bd_seq=st.none() | st.integers(0, 2),
        digest=st.integers(0, 3),
        arrival_us=st.integers(0, 10**9),
    )
    | st.builds(
        Arrival,
        kind=st.sampled_from(["DBIRTH", "DDATA", "DDEATH"]),
        device=st.sampled_from(["a", "b", "ü\0"]),
        seq=st.none() | st.integers(0, 4),
        bd_seq=st.none(),
        digest=st.integers(0, 3),
        arrival_us=st.integers(0, 10**9),
    ),
    max_size=40,
)


@given(_arrivals, st.sets(st.integers(0, 40)))
def test_verdicts_do_not_depend_on_where_the_messages_are_cut(arrivals: list[Arrival], cuts: set[int]) -> None:
    whole, cut = NodeState(), NodeState()
    for n, arrival in enumerate(arrivals):
        if n in cuts:
            cut = NodeState.of_json(cut.to_json())
        assert step(whole, arrival, EVERY_US) == step(cut, arrival, EVERY_US)
    assert whole == NodeState.of_json(cut.to_json())


@given(_arrivals)
def test_whatever_arrives_online_and_offline_alternate(arrivals: list[Arrival]) -> None:
    state, online = NodeState(), dict[str | None, bool]()
    for arrival in arrivals:
        for one in step(state, arrival, EVERY_US).events:
            if one.event in ("online", "offline") and one.detail != "rebirth":
                if one.device is not None or one.event == "offline":
                    assert online.get(one.device, one.event == "offline") is (one.event == "offline")
                online[one.device] = one.event == "online"
    assert {name for name, is_on in online.items() if name is not None and is_on} == {
        name for name, is_on in state.devices.items() if is_on
    }


@given(_arrivals)
def test_only_a_birth_makes_data_unmarked(arrivals: list[Arrival]) -> None:
    state, seen = NodeState(), False
    for arrival in arrivals:
        found = step(state, arrival, EVERY_US)
        seen = (seen and arrival.kind != "NDEATH") or arrival.kind == "NBIRTH" or found.mark == STALE
        if found.mark is None and arrival.kind not in ("NBIRTH", "NDEATH"):
            assert seen


def births() -> tuple[Births, dict[str, str]]:
    stored: dict[str, str] = {}
    return Births(stored), stored


def test_names_and_types_by_alias_and_by_name() -> None:
    found, stored = births()
    found.learn(None, [("temp", 1, 10), ("bdSeq", None, 4)])
    found.learn("D", [("speed", 1, 9)])
    for one in (found, Births(stored)):
        assert one.find(None, None, 1) == ("temp", 10)
        assert one.find("D", None, 1) == ("speed", 9)
        assert one.find("E", None, 1) == ("temp", 10)
        assert one.find(None, "bdSeq", None) == ("bdSeq", 4)
        assert one.find(None, "new", None) == ("new", 0)
        assert one.find(None, None, 9) == one.find(None, None, None) == (None, 0)
    found.learn(None, [("other", 1, 3)])
    assert Births(stored).find(None, None, 1) == ("other", 3)
    found.clear()
    assert found.find("D", None, 1) == (None, 0)


@given(st.dictionaries(st.text(), st.tuples(st.none() | st.integers(0, 2**64 - 1), st.integers(0, 34))))
def test_any_name_and_alias_is_found_after_a_restart(metrics: dict[str, Any]) -> None:
    found, stored = births()
    found.learn("D", [(name, alias, kind) for name, (alias, kind) in metrics.items()])
    again = Births(stored)
    for name, (alias, kind) in metrics.items():
        assert again.find("D", name, None) == (name, kind)
        assert again.find("D", None, alias) == found.find("D", None, alias)
