from __future__ import annotations

import itertools
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.errors import ConfigError
from pulsebridge.audit.records import json_object, record_id
from pulsebridge.demo.plan import FULL, QUICK, make_devices, make_plan, timeline
from pulsebridge.demo.recordings import (
    BUOY,
    FAULTS,
    GAP_INTERVALS,
    GLUCOSE,
    cut,
    encode_fault,
    load,
    speed_for_rate,
    within,
)

START = datetime(2010, 3, 24, 9, 51)
minutes = st.lists(st.integers(min_value=0, max_value=600), min_size=1, max_size=200)


def rows(gaps: list[int]) -> list[tuple[datetime, float]]:
    times = itertools.accumulate(gaps, lambda at, gap: at + timedelta(minutes=gap), initial=START)
    return [(at, float(i)) for i, at in enumerate(times)]


@pytest.fixture(scope="module")
def recordings() -> dict:
    return {kind: load(kind) for kind in (GLUCOSE, BUOY)}


def test_the_recordings_are_whole(recordings: dict) -> None:
    assert len(recordings[GLUCOSE]) == 52_281
    assert len(recordings[BUOY]) == 19_226
    for found in recordings.values():
        assert all(a[0] <= b[0] for a, b in itertools.pairwise(found))


@settings(deadline=None)
@given(minutes, st.integers(min_value=1, max_value=40))
def test_every_row_is_in_exactly_one_device_in_order(gaps: list[int], devices: int) -> None:
    recording = rows(gaps)
    if devices > len(recording):
        with pytest.raises(ConfigError):
            cut(GLUCOSE, recording, devices)
        return
    fleet = cut(GLUCOSE, recording, devices)
    assert [(r.ts, r.value) for d in fleet for r in d.readings] == recording
    assert len({d.name for d in fleet}) == devices
    for device in fleet:
        assert [r.seq for r in device.readings] == list(range(len(device.readings)))
        dues = [r.due_s for r in device.readings]
        assert dues == sorted(dues)
        assert all(b - a <= GAP_INTERVALS * GLUCOSE.interval_s for a, b in itertools.pairwise(dues))


@settings(deadline=None)
@given(
    st.floats(min_value=0.5, max_value=5000),
    st.integers(min_value=1, max_value=40),
    st.integers(min_value=1, max_value=40),
)
def test_the_speed_gives_the_rate(rate: float, wearables: int, buoys: int) -> None:
    gaps = [5] * 199
    fleet = cut(GLUCOSE, rows(gaps), wearables) + cut(BUOY, rows(gaps), buoys)
    speed = speed_for_rate(fleet, rate)
    natural = wearables / GLUCOSE.interval_s + buoys / BUOY.interval_s
    assert speed * natural == pytest.approx(rate)


@settings(deadline=None, max_examples=50)
@given(st.integers(min_value=1, max_value=6), st.integers(min_value=0, max_value=20))
def test_a_timeline_keeps_each_devices_order_and_adds_faults_beside(devices: int, every: int) -> None:
    fleet = cut(GLUCOSE, rows([5] * 99), devices)
    sends = timeline(fleet, 600.0, every)
    assert [s.due_s for s in sends] == sorted(s.due_s for s in sends)
    for index, device in enumerate(fleet):
        mine = [s for s in sends if s.device == index]
        assert [s.seq for s in mine] == list(range(len(mine)))
        assert [s.reading for s in mine if not s.fault] == list(device.readings)
    faults = sum(1 for s in sends if s.fault)
    readings = len(sends) - faults
    assert readings == 100
    assert faults == (100 // every if every else 0)
    ids = [s.reading_id(fleet[s.device]) for s in sends]
    assert len(set(ids)) == len(ids)


def test_the_full_run_is_long_enough_and_the_quick_one_short(recordings: dict) -> None:
    for scale, least, most in ((FULL, 20_000, 30_000), (QUICK, 1_500, 3_000)):
        devices, speed = make_devices(scale, recordings)
        plan, sends = make_plan(scale, devices, speed, [], ())
        assert least <= plan.readings <= most
        assert sends[-1].due_s <= scale.seconds * 1.1
        assert plan.faults > 0


def test_within_takes_the_beginning_of_each_stretch() -> None:
    fleet = cut(GLUCOSE, rows([5] * 99), 2)
    short = within(fleet, 1500.0)
    assert [len(d.readings) for d in short] == [6, 6]
    assert all(s.readings == whole.readings[:6] for s, whole in zip(short, fleet, strict=True))


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_broken_in_its_own_way_and_known_again(fault: str) -> None:
    payload = encode_fault(fault, "cgm-001-x00001", "2010-03-24T09:51:00Z", "glucose", 1)
    body = json_object(payload)
    if fault == "cut_short":
        assert body == {}
        assert record_id(payload).startswith("sha256:")
    else:
        assert record_id(payload) == "cgm-001-x00001"
        assert body
        assert body.get("glucose") != body.get("ts")
        assert "glucose" not in body or body["glucose"] == 9999.0
