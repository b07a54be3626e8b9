"""Which devices are listed, in which order, and what all of them come to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.inspect.devices.view import DeviceView
from pulsebridge.output.devices import age, overview_json, overview_text, table
from pulsebridge.output.overview import Overview, Selection

SECOND = 1_000_000
NOW = 100_000 * SECOND


def device(name: str, pending: int = 0, parked: int = 0, seen_us: int = 0) -> DeviceView:
    return DeviceView(name, 0, pending=pending, parked=parked, seen_us=seen_us)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5))), st.integers(0, 8))
def test_the_most_pending_are_shown_and_all_are_counted(counts: list[tuple[int, int]], limit: int) -> None:
    devices = [device(f"d{n:03}", live + parked, parked) for n, (live, parked) in enumerate(counts)]
    overview = Overview(Selection(pending=True), limit, NOW)
    for one in devices:
        overview.add(one)
    wanted = sorted((d for d in devices if d.pending), key=lambda d: (-d.pending, d.device))
    assert overview.lines == (wanted[:limit] if limit else wanted)
    assert overview.totals() == {
        "devices": len(devices),
        "absent": sum(d.parked > 0 for d in devices),
        "pending": sum(d.pending for d in devices),
        "parked": sum(d.parked for d in devices),
        "selected": len(wanted),
    }


@pytest.mark.parametrize(
    ("selection", "names"),
    [
        (Selection(), ["away", "slow", "silent", "there"]),
        (Selection(pending=True), ["away", "slow"]),
        (Selection(absent=True), ["away"]),
        (Selection(absent=True, silence_us=60 * SECOND), ["away", "silent"]),
    ],
)
def test_absent_is_whose_commands_are_parked_or_who_is_silent(selection: Selection, names: list[str]) -> None:
    overview = Overview(selection, 0, NOW)
    for one in (
        device("there", seen_us=NOW - SECOND),
        device("silent", seen_us=NOW - 3600 * SECOND),
        device("slow", pending=1, seen_us=NOW),
        device("away", pending=2, parked=2),
    ):
        overview.add(one)
    assert [one.device for one in overview.lines] == names


def test_a_device_is_online_after_a_recent_sign_and_otherwise_unknown() -> None:
    now, before = device("d", seen_us=NOW - 20 * SECOND), device("e", seen_us=NOW - 3600 * SECOND)
    assert [Selection().presence(one, NOW) for one in (now, before, device("f"))] == [
        "present", "unknown", "unknown",
    ]  # fmt: skip
    assert Selection(silence_us=10 * SECOND).presence(now, NOW) == "absent"
    assert Selection(silence_us=7200 * SECOND).presence(before, NOW) == "present"
    assert Selection().presence(device("g", 1, 1, NOW), NOW) == "absent"


def test_text_and_json_say_what_was_left_out() -> None:
    overview = Overview(Selection(), 1, NOW)
    overview.add(device("a", 1))
    overview.add(device("b", 3, 3, NOW - 65 * SECOND))
    read = {"partitions": 1, "backlog": 4, "backlog_cut": True, "backlog_left_out": 2}
    text = overview_text(overview, NOW, read)
    assert text.splitlines()[1].split() == ["b", "absent", "1m", "5s", "3", "3", "-", "-"]
    assert "… and 1 more" in text
    assert "2 devices, 1 absent, 4 commands pending, 3 of them parked" in text
    assert "--backlog" in text
    shown = overview_json(overview, NOW, read)
    assert [one["device"] for one in shown["devices"]] == ["b"]
    assert shown["devices"][0]["last_delivery"] is None
    assert "2 messages of the backlog are not valid commands" in text
    assert shown["read"]["backlog_cut"] is True


def test_ages_and_tables_are_short() -> None:
    assert [age(NOW - s * SECOND, NOW) for s in (0, 59, 61, 3600, 90_061)] == [
        "0s",
        "59s",
        "1m 1s",
        "1h",
        "1d 1h",
    ]
    assert age(0, NOW) == "-"
    assert table(("a", "bb"), [("ccc", "d")]) == ["a    bb", "ccc  d"]
