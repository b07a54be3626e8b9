"""The order of events in the log of upkeep, free of Spark: who may carry out a request."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from streaming.upkeep_log import Standing


def folded(*events: dict[str, Any]) -> Standing:
    return Standing.of({"seq": n, "token": str(n), **event} for n, event in enumerate(events, 1))


def began(owner: str, *flows: str) -> dict[str, Any]:
    return {"event": "began", "owner": owner, "arguments": json.dumps(flows)}


def asked(id: str, kind: str = "rebuild") -> dict[str, Any]:
    return {"event": "asked", "id": id, "kind": kind, "table": "t", "arguments": '{"device": "a"}'}


def taken(id: str, owner: str) -> dict[str, Any]:
    return {"event": "taken", "id": id, "owner": owner}


def test_a_request_is_free_for_the_job_alone_while_it_runs_and_for_any_process_after_it() -> None:
    events = [began("job", "plain"), asked("r")]
    found = folded(*events)
    assert found.next is not None
    assert found.next.arguments == {"device": "a"}
    assert found.free_for("job")
    assert not found.free_for("command")
    events.append({"event": "removed", "arguments": '["job"]'})
    assert folded(*events).free_for("command")


def test_a_taken_request_belongs_to_its_process_until_that_process_is_removed() -> None:
    events = [asked("r"), taken("r", "one")]
    assert folded(*events).next is None
    assert not folded(*events).free_for("two")
    found = folded(*events, {"event": "removed", "arguments": '["one"]'})
    assert found.next is not None
    assert found.free_for("two")


def test_a_job_replaces_one_that_ran_the_same_flow() -> None:
    found = folded(began("old", "plain", "keyed"), asked("r"), taken("r", "old"), began("new", "keyed"))
    assert list(found.jobs) == ["new"]
    assert found.free_for("new")
    both = folded(began("one", "plain"), began("two", "keyed"))
    assert not both.free_for("one")
    assert not both.free_for("two")


def test_what_has_changed_tables_is_completed_first() -> None:
    staged = [asked("late"), taken("late", "dead"), {"event": "staged", "id": "late"}]
    found = folded(asked("early"), *staged, {"event": "removed", "arguments": '["dead"]'})
    assert found.next is not None
    assert (found.next.id, found.next.state) == ("late", "staged")


OWNERS = st.sampled_from(["a", "b", "c"])
IDS = st.sampled_from(["1", "2"])
EVENTS = st.one_of(
    st.builds(began, OWNERS, st.sampled_from(["x", "y"])),
    st.builds(asked, IDS),
    st.builds(taken, IDS, OWNERS),
    st.builds(
        lambda id, event: {"event": event, "id": id},
        IDS,
        st.sampled_from(["staged", "done", "failed", "alive"]),
    ),
    st.builds(lambda owner: {"event": "removed", "arguments": json.dumps([owner])}, OWNERS),
)


@given(st.lists(EVENTS, max_size=30))
def test_no_two_processes_are_let_in_at_once(events: list[dict[str, Any]]) -> None:
    """Each process only adds what ``free_for`` allows it: then at most one carries out requests, whatever happens."""
    kept: list[dict[str, Any]] = []
    for event in events:
        now = folded(*kept)
        if event["event"] == "taken":
            request = now.requests.get(event["id"])
            if request is None or not request.open or request.owner or not now.free_for(event["owner"]):
                continue
        if event["event"] in ("staged", "done", "failed") and event["id"] not in [r.id for r in now.busy]:
            continue
        if event["event"] == "alive" and event["id"] not in now.requests:
            continue
        if event["event"] == "asked" and event["id"] in now.requests:
            continue
        if event["event"] == "began" and now.busy:
            continue
        kept.append(event)
        after = folded(*kept)
        assert len(after.busy) <= 1
        assert all(set(after.jobs) <= {r.owner} for r in after.busy)
        assert after.seq == len(kept)
