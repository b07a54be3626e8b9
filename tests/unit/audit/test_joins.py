from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsebridge.audit.joins import Hop, Kind, findings
from pulsebridge.audit.records import Position, Records, Stored
from tests.support.audit_records import whole_run
from tests.support.tampering import trials, unnoticed

glucose = st.integers(min_value=40, max_value=400)
fleets = st.lists(st.lists(glucose, min_size=1, max_size=30), min_size=1, max_size=4)
DIP = [100, 65, 80, 60, 120, 90, 69, 71, 40, 110]


@settings(deadline=None, max_examples=60)
@given(fleets)
def test_a_whole_run_has_no_findings(values: list[list[int]]) -> None:
    assert findings(whole_run(values)) == []


@settings(deadline=None, max_examples=60)
@given(fleets, st.data())
def test_any_record_removed_from_any_hop_is_named(values: list[list[int]], data: st.DataObject) -> None:
    whole = whole_run(values)
    hops = [
        name
        for name in ("acks", "stored", "bronze", "measurements", "alerts", "emitted", "received", "receipts")
        if getattr(whole, name)
    ]
    name = data.draw(st.sampled_from(hops))
    rows = getattr(whole, name)
    victim = data.draw(st.sampled_from(rows))
    tampered = replace(whole, **{name: tuple(r for r in rows if r is not victim)})
    failing = [f for f in findings(tampered) if f.fails]
    assert any(victim.id in f.records for f in failing)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.lists(glucose, min_size=12, max_size=30).map(lambda v: [*v, 100, 50, 100, 50]),
        min_size=2,
        max_size=4,
    )
)
def test_whatever_is_removed_repeated_or_swapped_is_named(values: list[list[int]]) -> None:
    whole = whole_run(values)
    assert unnoticed(whole) == []
    assert len(trials(whole)) == 27


def test_it_is_named_where_a_kill_has_made_spark_write_all_commands_again() -> None:
    whole = whole_run([DIP, DIP])
    again = tuple(e._replace(position=e.position._replace(ledger=9)) for e in whole.emitted)
    twice = replace(whole, emitted=whole.emitted + again)
    assert unnoticed(twice) == []
    assert len(trials(twice)) == 27


def redelivered(whole: Records, count: int) -> Records:
    """Ingest was killed: the last ``count`` readings of device 0 come again, in order, after the rest."""
    mine = [s for s in whole.stored if s.device == "cgm-000"][-count:]
    again = tuple(s._replace(position=s.position._replace(ledger=9)) for s in mine)
    bronze = tuple(b for b in whole.bronze) + tuple(
        whole.bronze[0]._replace(id=s.id, position=s.position) for s in again
    )
    return replace(whole, stored=whole.stored + again, bronze=bronze)


def test_redelivery_in_order_is_counted_and_does_not_fail() -> None:
    found = findings(redelivered(whole_run([DIP, DIP]), 5))
    assert {(f.hop, f.kind, f.fails) for f in found} == {(Hop.PULSAR, Kind.REPEATED, False)}
    assert len(found) == 5


def test_a_first_copy_that_comes_late_is_out_of_order() -> None:
    whole = whole_run([DIP])
    late = whole.stored[3]
    moved = late._replace(position=late.position._replace(ledger=99))
    found = findings(replace(whole, stored=tuple(moved if s is late else s for s in whole.stored)))
    named = {f.records[0] for f in found if f.hop == Hop.PULSAR and f.kind == Kind.OUT_OF_ORDER}
    assert named == {late.id}


def test_a_reading_lost_between_pulsar_and_bronze_is_missing_there_and_behind() -> None:
    whole = whole_run([DIP])
    found = findings(replace(whole, bronze=whole.bronze[1:], measurements=whole.measurements[1:]))
    assert [(f.hop, f.kind) for f in found] == [(Hop.BRONZE, Kind.MISSING)]


@pytest.mark.parametrize("field", ["measurements", "quarantine"])
def test_a_row_twice_in_measurements_or_quarantine_fails(field: str) -> None:
    whole = whole_run([DIP])
    found = findings(replace(whole, **{field: (*getattr(whole, field), getattr(whole, field)[0])}))
    assert [(f.hop, f.kind, f.fails) for f in found] == [(Hop.MEASUREMENTS, Kind.REPEATED, True)]


def test_commands_are_expected_by_the_rules_and_not_by_what_was_emitted() -> None:
    whole = whole_run([DIP])
    lost = whole.emitted[0].id
    nowhere = {n: tuple(r for r in getattr(whole, n) if r.id != lost) for n in ("emitted", "received", "receipts")}
    found = findings(replace(whole, **nowhere))
    assert (Hop.COMMANDS, Kind.MISSING, (lost,)) in {(f.hop, f.kind, f.records) for f in found}


def test_a_repeated_command_is_counted_and_does_not_fail() -> None:
    whole = whole_run([DIP])
    again = whole.received[-1]._replace(n=99)
    found = findings(replace(whole, received=(*whole.received, again)))
    assert [(f.hop, f.kind, f.fails) for f in found] == [(Hop.RECEIVED, Kind.REPEATED, False)]


def test_an_empty_run_fails() -> None:
    failing = [f for f in findings(Records(expected={"readings": 10})) if f.fails]
    assert {f.hop for f in failing} == {Hop.SIZE}


def test_a_short_run_fails_although_nothing_is_missing() -> None:
    whole = whole_run([DIP])
    found = findings(replace(whole, expected={**whole.expected, "readings": len(DIP) + 1}))
    assert [(f.hop, f.fails) for f in found] == [(Hop.SIZE, True)]


def test_an_audit_that_expects_no_reading_fails() -> None:
    assert any(f.fails for f in findings(replace(whole_run([DIP]), expected={})))


def test_what_other_devices_send_is_left_out_but_must_be_in_bronze() -> None:
    whole = whole_run([DIP])
    guest = Stored("guest-1", "guest", Position("persistent://public/pulsebridge/plant", 0, 1, 1, 0), 1)
    kept = replace(
        whole,
        stored=(*whole.stored, guest),
        bronze=(*whole.bronze, whole.bronze[0]._replace(id="guest-1", position=guest.position)),
    )
    assert findings(kept) == []
    lost = findings(replace(whole, stored=(*whole.stored, guest)))
    assert [(f.hop, f.kind, f.records) for f in lost] == [(Hop.BRONZE, Kind.MISSING, ("guest-1",))]
