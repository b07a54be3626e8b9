"""What makes a process unready, and what little makes it sick."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bridge.health import Health

STUCK_S = 60.0


def test_a_process_without_parts_is_starting() -> None:
    verdict = Health().verdict(0.0)
    assert verdict.healthy
    assert verdict.missing == {"process": "starting"}


def test_a_server_that_is_away_makes_it_unready_and_leaves_it_healthy() -> None:
    health = Health()
    link, pulsar = health.part("link a", loop=True), health.part("pulsar", answers_within_s=15)
    assert health.verdict(0.0).missing == {"link a": "starting", "pulsar": "starting"}
    link.ready()
    pulsar.ready()
    assert health.verdict(0.0).ready
    link.waits("refused")
    verdict = health.verdict(1.0)
    assert verdict.healthy
    assert verdict.missing == {"link a": "refused"}
    link.ready()
    assert health.verdict(2.0).ready


def test_an_answer_grows_old_without_a_word() -> None:
    health = Health()
    health.part("link a", loop=True).ready()
    pulsar = health.part("pulsar", answers_within_s=15)
    pulsar.turned(100.0)
    pulsar.ready()
    assert health.verdict(115.0).ready
    verdict = health.verdict(116.0)
    assert verdict.healthy
    assert verdict.missing == {"pulsar": "no answer for 16 s"}
    pulsar.turned(117.0)
    assert health.verdict(117.0).ready


def test_a_loop_that_does_not_turn_makes_it_sick_until_it_turns() -> None:
    health = Health(STUCK_S)
    link = health.part("link a", loop=True)
    link.ready()
    assert health.verdict(1e9).healthy  # it has not begun
    link.turned(0.0)
    assert health.verdict(STUCK_S).healthy
    verdict = health.verdict(STUCK_S + 1)
    assert verdict.sick == verdict.missing == {"link a": "its loop has not run for 61 s"}
    link.turned(STUCK_S + 2)
    assert health.verdict(STUCK_S + 2).healthy


def test_a_loop_on_standby_may_wait_without_a_limit() -> None:
    health = Health(STUCK_S)
    partition = health.part("partition 0", loop=True)
    partition.turned(0.0)
    partition.stands_by("another process owns it")
    assert health.verdict(1e9).healthy
    partition.turned(1e9)
    partition.ready()
    assert not health.verdict(1e9 + STUCK_S + 1).healthy


def test_a_failure_for_good_stays() -> None:
    health = Health()
    link = health.part("link a", loop=True)
    link.ready()
    link.failed("another process uses the client id")
    link.ready()
    verdict = health.verdict(0.0)
    assert not verdict.healthy
    assert not verdict.ready
    assert verdict.sick == {"link a": "another process uses the client id"}
    health.remove(link)
    assert health.verdict(0.0).healthy


def test_standing_by_is_no_fault_beside_a_part_that_serves() -> None:
    health = Health()
    ours, theirs = health.part("partition 0", loop=True), health.part("partition 1", loop=True)
    health.part("pulsar").ready()  # what serves is a loop, not the server behind it
    theirs.stands_by("another process has it")
    ours.stands_by("another process has it")
    assert health.verdict(0.0).missing == {
        "partition 0": "another process has it",
        "partition 1": "another process has it",
    }
    ours.ready()
    assert health.verdict(0.0).ready
    ours.waits("MQTT is away")
    assert health.verdict(0.0).missing == {"partition 0": "MQTT is away"}


def test_a_process_that_ends_serves_no_more_and_is_not_sick() -> None:
    health = Health(STUCK_S)
    link = health.part("link a", loop=True)
    link.turned(0.0)
    link.ready()
    health.stopping()
    verdict = health.verdict(1000.0)
    assert verdict.healthy
    assert verdict.missing == {"process": "stopping"}


_EVENTS = st.tuples(
    st.sampled_from("abc"),
    st.sampled_from(["ready", "waits", "stands_by", "failed", "turned"]),
    st.floats(0, 200),
)


@given(st.lists(_EVENTS, max_size=30))
def test_whatever_happens_a_sick_process_is_not_ready_and_a_ready_one_serves(
    events: list[tuple[str, str, float]],
) -> None:
    health = Health(STUCK_S)
    parts = {name: health.part(name, loop=name == "a", answers_within_s=15) for name in "abc"}
    last: dict[str, str] = {}
    failed: set[str] = set()
    now = 0.0
    for name, event, seconds in events:
        now += seconds
        if event == "turned":
            parts[name].turned(now)
        elif event == "failed":
            parts[name].failed("for good")
            failed.add(name)
        else:
            getattr(parts[name], event)(*([] if event == "ready" else ["why"]))
            last[name] = event
        verdict = health.verdict(now)
        assert verdict.healthy or not verdict.ready
        assert failed <= set(verdict.sick)
        assert set(verdict.sick) <= failed | {"a"}
        if verdict.ready:
            assert all(last.get(name) in ("ready", "stands_by") for name in parts)
            assert last["a"] == "ready" or "stands_by" not in last.values()
