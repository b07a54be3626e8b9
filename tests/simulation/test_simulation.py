"""A short run of each kind of world, the planted bugs, and the runs that once failed."""

from __future__ import annotations

import pytest

from tests.simulation.engine import STEPS, Run, failure_of, first_failure, shrink
from tests.simulation.ingest_world import IngestWorld
from tests.simulation.planted import PLANTED, Planted
from tests.simulation.scenarios import SCENARIOS

WORLDS = {"ingest": 600, "push": 40, "broadcast": 20, "contested": 40}
"""Worlds of fixed seeds: a change is not refused for what it did not cause. ``make simulate`` draws its seeds."""
FOUND_WITHIN = {"ingest": 4000, "push": 2000, "broadcast": 100, "contested": 400}
"""Worlds in which a planted bug must be found."""


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_simulated_world_breaks_the_promise(name: str) -> None:
    print(f"make simulate ONLY={name} SEED=1 STEPS={WORLDS[name] * STEPS}")
    assert first_failure(SCENARIOS[name], 1, WORLDS[name]) is None


@pytest.mark.thorough
@pytest.mark.parametrize("planted", PLANTED, ids=lambda one: f"{one.scenario}: {one.what}")
def test_a_planted_bug_is_found(planted: Planted) -> None:
    with planted.planted():
        assert first_failure(SCENARIOS[planted.scenario], 1, FOUND_WITHIN[planted.scenario]) is not None


def test_a_failing_run_is_shrunk_to_the_events_that_it_needs() -> None:
    (planted,) = [one for one in PLANTED if one.what == "a session without SUBACK is believed"]
    with planted.planted():
        found = first_failure(SCENARIOS["ingest"], 1, 100)
        assert found is not None
        shrunk = shrink(SCENARIOS["ingest"].run(found[0]))
        assert failure_of(shrunk)
        for at in range(len(shrunk.events)):
            assert not failure_of(shrunk._replace(events=shrunk.events[:at] + shrunk.events[at + 1 :]))
    assert not failure_of(shrunk)


@pytest.mark.parametrize("packets", [0, 1])
def test_h6_a_connection_that_ends_before_suback_leaves_no_session_without_filters(packets: int) -> None:
    """The broker has lost the session. It gets CONNECT, or CONNECT alone reaches it before the connection ends."""
    settled = [("connect", 0), *[("work", 4)] * 3, ("lose_session", 0), ("connect", 0), ("to_broker", 0)]
    events = [*settled, *[("to_client", 0)] * packets, ("cut", 0)]
    assert not failure_of(Run(IngestWorld, events, finish=True))
