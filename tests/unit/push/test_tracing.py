"""Which commands are traced, and how long each step took."""

from __future__ import annotations

import pytest

from bridge.contract.commands import CommandPosition
from bridge.push.tracing import Traces

SECOND = 1_000_000


def at(number: int) -> CommandPosition:
    return CommandPosition(1, number, -1)


@pytest.mark.parametrize(("wanted", "traced"), [("all", True), ("c-1", True), ("d", True), ("c-2", False)])
def test_a_command_is_traced_by_its_id_by_its_device_or_with_all(wanted: str, traced: bool) -> None:
    traces = Traces(wanted)
    traces.begin(at(1), "c-1", "d", 10 * SECOND)
    assert (traces.step(at(1), 11 * SECOND) is not None) == traced


def test_each_step_shows_its_time_and_the_milliseconds_since_the_previous_one() -> None:
    traces = Traces("all")
    traces.begin(at(1), "c-1", "d", 10 * SECOND)
    first = traces.step(at(1), 10 * SECOND + 1500)
    second = traces.step(at(1), 10 * SECOND + 4000)
    assert first == {
        "command_id": "c-1",
        "device": "d",
        "at": "1970-01-01T00:00:10.001+00:00",
        "ms": 1.5,
    }
    assert second is not None
    assert second["ms"] == 2.5
    traces.begin(at(2), "c-2", "d")
    unknown = traces.step(at(2), 20 * SECOND)
    assert unknown is not None
    assert unknown["ms"] is None


def test_a_cursor_shows_each_command_that_it_covers_once() -> None:
    traces = Traces("d")
    for number in (1, 2, 3):
        traces.begin(at(number), f"c-{number}", "d")
    traces.settled(at(1))
    traces.cursor_written("d")
    traces.settled(at(2))  # while that write is under way
    assert traces.cursor_stored("d") == [at(1)]
    assert traces.cursor_stored("d") == []
    traces.cursor_written("d")
    assert traces.cursor_stored("d") == [at(2)]


def test_no_more_is_remembered_than_its_bound() -> None:
    traces = Traces("all", most=10)
    for number in range(100):
        traces.begin(at(number), f"c-{number}", "d")
        traces.pushed(number, at(number))
    assert [n for n in range(100) if traces.step(at(n), SECOND)] == list(range(90, 100))
    assert [n for n in range(100) if traces.position_of(n) is not None] == list(range(90, 100))
    traces.end(at(99))
    assert traces.step(at(99), SECOND) is None
