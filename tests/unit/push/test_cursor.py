from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.contract.commands import BEFORE_ALL, CommandPosition
from bridge.contract.cursors import DAYS, MAX_UNPROVEN, MORE, Unproven, ids_key, key_of_term, term_name
from bridge.contract.segments import ParkedId
from bridge.errors import ContractError
from bridge.push.cursor import Cursor
from bridge.push.cursor_log import CursorRecords

DAY_US = 86_400_000_000


@given(
    st.lists(st.tuples(st.integers(0, 50), st.booleans(), st.integers(0, 20)), max_size=150),
    st.integers(0, 8),
)
def test_a_cursor_survives_encoding_and_remembers_the_last_ids_and_more_of_the_last_days(
    ids: list[tuple[int, bool, int]], capacity: int
) -> None:
    cursor = Cursor(capacity)
    kept: dict[int, tuple[bool, int]] = {}
    newest = 0
    for entry, (number, delivered, day) in enumerate(ids):
        place = CommandPosition(1, entry, -1)
        cursor.settle(place, f"c-{number}", delivered=delivered, at_us=day * DAY_US)
        if number not in kept:
            newest = max(newest, day)  # a clock that was set back makes nothing older
            kept[number] = delivered, newest
        while len(kept) > MORE * capacity or (len(kept) > capacity and newest - next(iter(kept.values()))[1] > DAYS):
            del kept[next(iter(kept))]
    again = Cursor.decode(cursor.encode(), capacity)
    assert again.position == cursor.position
    assert again.encode() == cursor.encode()
    for number in range(51):
        assert again.knows(f"c-{number}") == cursor.knows(f"c-{number}") == (number in kept)
        assert again.delivered(f"c-{number}") == kept.get(number, (False, 0))[0]


@pytest.mark.parametrize("days", [[1, 2, 1], [3, 0], [-1, 0], ["x", 0], [1], 7])
def test_ids_whose_days_are_not_theirs_are_refused(days: object) -> None:
    body = {"v": 2, "position": [1, 2, 3], "ids": "AAAAAAAAAAAA", "days": days}
    with pytest.raises(ContractError):
        Cursor.decode(json.dumps(body).encode(), 8)


def test_a_cursor_does_not_go_back() -> None:
    cursor = Cursor(4)
    assert cursor.position == BEFORE_ALL
    cursor.pass_over(CommandPosition(2, 0, -1))
    cursor.settle(CommandPosition(1, 9, 3), "late", delivered=True)
    assert cursor.position == CommandPosition(2, 0, -1)
    assert cursor.knows("late")


def test_merging_keeps_the_later_position_and_all_ids() -> None:
    cursor, stale = Cursor(8, CommandPosition(5, 0, -1)), Cursor(8)
    cursor.settle(CommandPosition(6, 0, -1), "new", delivered=True)
    stale.settle(CommandPosition(5, 1, -1), "old", delivered=False)
    cursor.merge(stale)
    assert cursor.position == CommandPosition(6, 0, -1)
    assert (cursor.knows("old"), cursor.delivered("old"), cursor.delivered("new")) == (True, False, True)


@pytest.mark.parametrize(
    "payload", [b"", b"x", b"[]", b"{}", b'{"v":3,"position":[1,2,3],"ids":""}', b'{"v":1,"position":[1,2]}',
                b'{"v":1,"position":[1,2,3],"ids":[1]}', b'{"v":1,"position":[1,2,3]}']
)  # fmt: skip
def test_a_record_of_another_shape_is_refused(payload: bytes) -> None:
    with pytest.raises(ContractError):
        Cursor.decode(payload, 4)


@pytest.mark.parametrize(("count", "each"), [(1000, 1000), (20_000, 1800)])
def test_a_device_with_many_commands_costs_little_for_each(count: int, each: int) -> None:
    cursor, written = Cursor(256), Counter[str]()
    for entry in range(count):
        at_us = 1_800_000_000_000_000 + entry * 2_000_000
        place = CommandPosition(123_456, entry, -1)
        cursor.settle(place, f"command-{entry}", delivered=True, at_us=at_us)
        cursor.add_unproven(Unproven(ParkedId(place, at_us // 1000 + 600_000, maybe_seen=True, resend=True), at_us))
        for key, payload in cursor.records("d"):
            written[key] += len(payload)
            assert len(payload) < (2048 if key == "d" else 64 * 1024)
    assert written.total() < count * each


@given(
    st.lists(st.tuples(st.integers(0, 60), st.booleans(), st.integers(0, 20)), max_size=120),
    st.integers(4, 40),
    st.sets(st.integers(0, 120)),
    st.sets(st.integers(0, 120)),
)
def test_the_next_owner_knows_what_a_cursor_and_the_ids_apart_from_it_say(
    settled: list[tuple[int, bool, int]], capacity: int, takeovers: set[int], bursts: set[int]
) -> None:
    """A cursor with all ids in it is what they are compared with. ``takeovers``: after which of them; ``bursts``: of
    which the cursor was not written before the next was settled.
    """
    all_in_one, cursor = Cursor(capacity), Cursor(capacity)
    stored: dict[str, bytes] = {}
    for entry, (number, delivered, day) in enumerate(settled):
        for one in (all_in_one, cursor):
            place = CommandPosition(1, entry, -1)
            one.settle(place, f"c-{number}", delivered=delivered, at_us=day * DAY_US)
        if entry in bursts:
            continue
        before = read_back(stored, capacity)
        *apart, last = cursor.records("d")
        between = read_back(stored | dict(apart), capacity)
        assert between.position == before.position
        for number_ in range(61):  # died between the two, it knows no command that no cursor has passed
            assert between.knows(f"c-{number_}") <= before.knows(f"c-{number_}")
        stored |= dict([*apart, last])
        if entry in takeovers:
            cursor = read_back(stored, capacity)
        for number_ in range(61):
            name = f"c-{number_}"
            for one in (cursor, read_back(stored, capacity)):
                assert one.knows(name) == all_in_one.knows(name)
                assert one.delivered(name) == all_in_one.delivered(name)


def read_back(stored: dict[str, bytes], capacity: int) -> Cursor:
    """Return the cursor that the next owner finds."""
    found = CursorRecords(capacity)
    for key, payload in stored.items():
        found.take(key, payload)
    return found.whole().get("d") or Cursor(capacity)


def test_a_cursor_of_a_version_that_was_never_released_is_refused() -> None:
    first = b'{"v":1,"position":[7,3,-1],"ids":["AAAAAAAAAAAA","!BBBBBBBBBBBB"],"sure":[7,2,-1,9000,8000000],"at":5}'
    with pytest.raises(ContractError, match="version 1"):
        Cursor.decode(first, 8)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**40),
            st.integers(0, 2**20),
            st.integers(-1, 999),
            st.integers(0, 2**43),
            st.integers(0, 2**53),
        ),
        max_size=MAX_UNPROVEN,
    )
)
def test_recent_confirmations_of_the_broker_survive_encoding(
    rows: list[tuple[int, int, int, int, int]],
) -> None:
    cursor = Cursor(8)
    for ledger, entry, index, expires_at_ms, at_us in rows:
        place = CommandPosition(ledger, entry, index)
        cursor.add_unproven(Unproven(ParkedId(place, expires_at_ms, maybe_seen=True, resend=True), at_us))
    assert Cursor.decode(cursor.encode(), 8).unproven == cursor.unproven


def test_h23_ids_that_a_former_owner_wrote_late_are_known_and_those_of_its_successor_are_written_again() -> None:
    former, found = Cursor(8), CursorRecords(8)
    for entry in range(3):
        former.settle(CommandPosition(1, entry, -1), f"both {entry}", delivered=True)
        ((key, payload),) = former.records("d", "1.1")
        found.take(key, payload, CommandPosition(1, 2, -1))
    successor = Cursor.decode(payload, 8)
    for entry in (8, 9):
        successor.settle(CommandPosition(1, entry, -1), f"of the successor {entry}", delivered=True)
        for key, payload in successor.records("d", "1.3"):
            found.take(key, payload, CommandPosition(1, 4, -1))
    for entry in (4, 5):
        former.settle(CommandPosition(1, entry, -1), f"late {entry}", delivered=False)
        *_, (key, payload) = late = former.records("d", "1.1")
        if len(late) == 1:
            found.take(key, payload, CommandPosition(1, 5, -1))
    assert [key for key, _ in late] == [f"{ids_key('d')}\0001.1", "d\0001.1"]
    found.take(*late[0], CommandPosition(1, 6, -1))
    cursor = found.whole()["d"]
    assert all(map(cursor.knows, ("both 0", "both 2", "of the successor 8", "of the successor 9", "late 4")))
    assert cursor.position.entry == 9


def test_a_device_that_was_forgotten_has_no_ids_either() -> None:
    cursor, found = Cursor(8), CursorRecords(8)
    cursor.settle(CommandPosition(1, 1, -1), "c", delivered=True)
    for key, payload in cursor.records("d", whole=True):
        found.take(key, payload)
    found.take("d", b"")
    assert found.whole() == {}


@pytest.mark.parametrize("payload", [b"x", b'{"v":1,"ids":""}', b'{"v":2}', b'{"v":2,"ids":[1]}'])
def test_ids_of_another_shape_are_refused_and_none_is_forgotten(payload: bytes) -> None:
    cursor = Cursor(8)
    cursor.settle(CommandPosition(1, 1, -1), "c", delivered=True)
    with pytest.raises(ContractError):
        cursor.with_ids(payload)
    assert cursor.knows("c")


@pytest.mark.parametrize("capacity", [0, 8])
def test_ids_of_which_there_is_no_cursor_are_found(capacity: int) -> None:
    found = CursorRecords(capacity)
    for device in ("has one", "is gone", "its ids are gone, too", "has none"):
        cursor = Cursor(8)
        cursor.settle(CommandPosition(1, 1, -1), device, delivered=True)
        *_, last = cursor.records(device)
        ids, _ = cursor.records(device, all_keys=True)
        found.take(*ids)
        if device != "has none":
            found.take(*last)
    found.take("is gone", b"")  # removes what was read of it, its ids are there all the same
    found.take(ids_key("is gone"), b'{"v":2,"ids":""}')
    found.take("its ids are gone, too", b"")
    found.take(ids_key("its ids are gone, too"), b"")
    assert set(found.whole()) == {"has one"}
    assert sorted(found.orphans) == [ids_key("has none"), ids_key("is gone")]


def records_of(*written: tuple[str, Cursor]) -> CursorRecords:
    found, terms = CursorRecords(8), dict[str, str]()
    for entry, (writer, cursor) in enumerate(written):
        term = terms.setdefault(writer, term_name(CommandPosition(1, entry, -1)))
        found.take(key_of_term("d", term), cursor.encode(), CommandPosition(1, entry + 1, -1))
    found.whole()
    return found


@pytest.mark.parametrize("behind", [0, 3])
def test_h26_a_late_write_of_a_former_owner_does_not_undo_what_its_successor_sends_again(behind: int) -> None:
    place = CommandPosition(1, 5, -1)
    former, successor = Cursor(8, place), Cursor(8, place)
    former.settle(place._replace(entry=5 + behind), "confirmed late", delivered=True)
    successor.resend_parked([ParkedId(place, maybe_seen=True, resend=True)])
    found = records_of(("former", Cursor(8, place)), ("successor", successor), ("former", former))
    counts = found.by_device["d"]
    assert (counts.resend, counts.resend_from, counts.position) == (
        successor.resend,
        successor.resend_from,
        place,
    )
    assert counts.delivered("confirmed late"), "what the former one knew is not lost"


def test_what_an_owner_says_of_its_own_commands_counts_and_so_does_that_of_the_next_one() -> None:
    place = CommandPosition(1, 5, -1)
    back, done = Cursor(8, place), Cursor(8, place)
    back.resend_parked([ParkedId(place, maybe_seen=True, resend=True)])
    for writers in (("one", "one"), ("one", "other")):
        found = records_of(*zip(writers, (back, done), strict=True))
        assert found.by_device["d"].resend_from is None
