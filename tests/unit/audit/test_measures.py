from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsebridge.audit.joins import findings
from pulsebridge.audit.measures import command_latencies, spread, table_latencies
from pulsebridge.audit.verdict import audit, numbers
from tests.support.audit_records import whole_run

DIP = [100, 65, 80, 60, 120, 90, 69, 71, 40, 110]


@given(st.lists(st.floats(min_value=0, max_value=1e6), min_size=1, max_size=300))
def test_a_spread_is_of_values_that_occurred(values: list[float]) -> None:
    found = spread(values)
    assert found is not None
    assert {found.p50, found.p99, found.max} <= set(values)
    assert found.p50 <= found.p99 <= found.max == max(values)
    assert sum(v <= found.p99 for v in values) >= math.ceil(0.99 * len(values))


def test_no_values_have_no_spread() -> None:
    assert spread([]) is None


def test_latencies_begin_at_the_device() -> None:
    whole = whole_run([DIP])
    assert {x.seconds for x in table_latencies(whole)} == {0.9}
    sent = {p.id: p.us for p in whole.published}
    cause = {e.id: e.reading_id for e in whole.emitted}
    assert [x.seconds for x in command_latencies(whole)] == pytest.approx(
        sorted(((r.us - sent[cause[r.id]]) / 1e6 for r in whole.received), key=lambda s: 0)
    )


def test_a_repeated_command_counts_from_its_first_copy() -> None:
    whole = whole_run([DIP])
    late = whole.received[0]._replace(n=99, us=10**12)
    assert command_latencies(replace(whole, received=(*whole.received, late))) == command_latencies(whole)


def test_a_kill_has_recovered_when_the_output_moves_again() -> None:
    events = [
        {"e": "stage", "us": 1, "name": "servers", "s": 1.0},
        {"e": "kill", "target": "spark", "us": 10},
        {"e": "restarted", "target": "spark", "us": 20},
        {"e": "kill", "target": "push", "us": 1_000_000},
        {"e": "recovered", "target": "spark", "us": 2_000_010},
    ]
    verdict = audit(whole_run([DIP]), events)
    assert [(k.target, k.killed_us, k.seconds) for k in verdict.kills] == [
        ("spark", 10, 2.0),
        ("push", 1_000_000, None),
    ]
    assert verdict.passed
    assert verdict.stages == {"servers": 1.0}


def test_the_numbers_of_a_whole_run_are_what_they_must_be() -> None:
    whole = whole_run([DIP, DIP])
    found = {n.name: n for n in numbers(whole, findings(whole))}
    assert all(n.ok for n in found.values())
    assert found["in measurements or quarantine"].value == 22
    assert found["commands received"].value == len(whole.emitted)


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("bronze", "in bronze"),
        ("received", "commands received"),
        ("acks", "acknowledged"),
        ("emitted", "commands emitted"),
    ],
)
def test_a_record_less_shows_in_its_number_and_fails(field: str, name: str) -> None:
    whole = whole_run([DIP])
    short = replace(whole, **{field: getattr(whole, field)[1:]})
    verdict = audit(short)
    assert not verdict.passed
    assert name in {n.name for n in verdict.numbers if not n.ok}
