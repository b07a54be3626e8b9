from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.commands import CommandPosition
from bridge.errors import ContractError
from bridge.push.cursor import NOWHERE, Cursor, OwnerRecord
from bridge.push.parked import ParkedId
from bridge.push.records import CursorRecords


@given(st.lists(st.tuples(st.text(max_size=5), st.booleans()), max_size=20), st.integers(1, 8))
def test_a_cursor_survives_encoding_and_remembers_the_last_ids(
    ids: list[tuple[str, bool]], capacity: int
) -> None:
    cursor = Cursor(capacity)
    for entry, (command_id, delivered) in enumerate(ids):
        cursor.settle(CommandPosition(1, entry, -1), command_id, delivered=delivered)
    again = Cursor.decode(cursor.encode(), capacity)
    assert again.position == cursor.position
    assert again.encode() == cursor.encode()
    first: dict[str, bool] = {}
    kept: list[str] = []
    for command_id, delivered in ids:
        if command_id not in kept:
            first[command_id] = delivered
            kept = [*kept, command_id][-capacity:]
    for command_id in {i for i, _ in ids}:
        assert again.knows(command_id) == (command_id in kept)
        assert again.delivered(command_id) == (command_id in kept and first[command_id])


def test_a_cursor_does_not_go_back() -> None:
    cursor = Cursor(4)
    assert cursor.position == NOWHERE
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
    "payload", [b"", b"x", b"[]", b"{}", b'{"v":2,"position":[1,2,3],"ids":[]}', b'{"v":1,"position":[1,2]}',
                b'{"v":1,"position":[1,2,3],"ids":[1]}', b'{"v":1,"position":[1,2,3]}']
)  # fmt: skip
def test_a_record_of_another_shape_is_refused(payload: bytes) -> None:
    with pytest.raises(ContractError):
        Cursor.decode(payload, 4)


def test_a_full_cursor_record_stays_small() -> None:
    cursor = Cursor(256)
    for entry in range(300):
        cursor.settle(CommandPosition(1, entry, -1), f"command-{entry}", delivered=True)
    assert len(cursor.encode()) < 4096
    assert len(json.loads(cursor.encode())["ids"]) == 256


def test_an_owner_record_survives_encoding() -> None:
    record = OwnerRecord.decode(OwnerRecord("host/1/x", 3, clean=True).encode())
    assert record == OwnerRecord("host/1/x", 3, clean=True)
    with pytest.raises(ContractError):
        OwnerRecord.decode(b'{"v":7}')


def records_of(*written: tuple[str, Cursor]) -> CursorRecords:
    found = CursorRecords(8)
    for writer, cursor in written:
        found.take("d", cursor.encode(), writer)
    return found


@pytest.mark.parametrize("behind", [0, 3])
def test_h26_a_late_write_of_a_former_owner_does_not_undo_what_its_successor_sends_again(behind: int) -> None:
    place = CommandPosition(1, 5, -1)
    former, successor = Cursor(8, place), Cursor(8, place)
    former.settle(place._replace(entry=5 + behind), "confirmed late", delivered=True)
    successor.go_back([ParkedId(place, maybe_seen=True, unsure=True)])
    found = records_of(("former", Cursor(8, place)), ("successor", successor), ("former", former))
    counts = found.by_device["d"]
    assert (counts.again, counts.again_from, counts.position) == (
        successor.again,
        successor.again_from,
        place,
    )
    assert counts.delivered("confirmed late"), "what the former one knew is not lost"
    assert found.stale == {"d"}, "it is written again"


def test_what_an_owner_says_of_its_own_commands_counts_and_so_does_that_of_the_next_one() -> None:
    place = CommandPosition(1, 5, -1)
    back, done = Cursor(8, place), Cursor(8, place)
    back.go_back([ParkedId(place, maybe_seen=True, unsure=True)])
    for writers in (("one", "one"), ("one", "other")):
        found = records_of(*zip(writers, (back, done), strict=True))
        assert (found.by_device["d"].again_from, found.stale) == (None, set())
