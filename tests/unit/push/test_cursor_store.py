"""Cursors of devices with nothing under way are in a temporary file, and decoded when their device wakes."""

from __future__ import annotations

import sqlite3

import pytest

from bridge.contract.commands import Command, CommandPosition
from bridge.contract.cursors import Unproven, ids_key
from bridge.contract.segments import ParkedId
from bridge.errors import TransientError
from bridge.push.actions import Ack, Push, StoreCursor, StoreReceipt
from bridge.push.cursor import Cursor
from bridge.push.cursor_log import CursorRecords
from bridge.push.cursor_store import CursorStore, Resting
from bridge.push.partition import Partition
from tests.support.push_limits import Limits

NOW = 1_700_000_000_000_000
SECOND = 1_000_000
LIMITS = Limits(awake=3)


def position(entry: int) -> CommandPosition:
    return CommandPosition(1, entry, -1)


def command(device: str) -> Command:
    return Command(f"c-{device}", device, "t", b"x")


def deliver(core: Partition, device: str, entry: int, stored: dict[str, bytes], now: int = NOW) -> list[Push]:
    """Have a command delivered, and all that follows stored. Returns the pushes."""
    core.arrived(position(entry), command(device), now)
    pushed = []
    while actions := core.take(now):
        for action in actions:
            if isinstance(action, Push):
                pushed.append(action)
                core.confirmed(action.number, 0, now)
            elif isinstance(action, StoreCursor):
                stored |= dict(action.records)
                core.cursor_stored(action.device)
            elif isinstance(action, StoreReceipt):
                core.settlement.receipt_stored(action.position)
    return pushed


def a_core(stored: dict[str, bytes] | None = None, now: int = NOW, horizon: CommandPosition | None = None) -> Partition:
    found = CursorRecords(LIMITS.remembered_ids, (now - LIMITS.unsure_us) // 1000)
    for key, payload in (stored or {}).items():
        found.take(key, payload)
    core = Partition(0, LIMITS.nested(), found.whole(), horizon, now_us=now)
    core.link_up()
    return core


def test_devices_with_nothing_to_do_leave_memory_and_are_known_all_the_same() -> None:
    core, stored = a_core(), dict[str, bytes]()
    names = [f"d{n}" for n in range(50)]
    for entry, name in enumerate(names):
        assert len(deliver(core, name, entry, stored)) == 1
    assert len(core.devices.awake) <= 5
    assert sorted(core.devices.with_cursors) == sorted(names)
    for entry, name in enumerate(names):
        assert core.devices.knows(name)
        assert core.devices.any_cursor(name).position == position(entry)  # type: ignore[union-attr]
        assert deliver(core, name, 100 + entry, stored) == [], "the id is known"
    core.arrived(position(7), command("d7"), NOW)
    assert core.take(NOW) == [Ack(position(7))], "settled here: the acknowledgement was lost, no second receipt"


def test_h26_what_the_broker_alone_confirmed_is_retained_for_devices_that_left_memory_too() -> None:
    core, stored = a_core(), dict[str, bytes]()
    for entry in range(20):
        deliver(core, f"d{entry}", entry, stored)
    assert core.retention.end_scan(NOW).oldest == position(0)
    core.gone("d2", NOW + SECOND, NOW + SECOND)
    assert core.segments.parked == 1, "what it may not have is sent again"
    later = NOW + LIMITS.unsure_us + 20 * SECOND
    assert core.retention.end_scan(later).oldest > position(0)  # type: ignore[operator]
    core.take(later)
    core.gone("d5", later, later)
    assert core.segments.parked == 1


def test_a_takeover_decodes_no_cursor_of_a_device_that_has_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    stored: dict[str, bytes] = {}
    former = a_core()
    for entry in range(20):
        deliver(former, f"d{entry}", entry, stored)
    decoded: list[bytes] = []
    decode = Cursor.decode
    monkeypatch.setattr(
        Cursor, "decode", lambda payload, capacity: decoded.append(payload) or decode(payload, capacity)
    )
    later = NOW + LIMITS.unsure_us + SECOND
    core = a_core(stored, later)
    assert (decoded, len(core.devices.cursors), len(core.devices.awake)) == ([], 20, 0)
    core.gone("d3", later, later)
    assert decoded == [stored["d3"]]
    deliver(core, "d4", 50, stored, later)
    assert decoded[1:] == [decoded[1]] == [decoded[-1]]
    assert core.devices.knows("d19")
    assert not core.devices.knows("d20")


def test_h44_a_cursor_that_turns_out_to_be_unreadable_is_reported_and_its_commands_are_marked() -> None:
    bad = b'{"v":2,"position":[1,2,-1],"ids":"AAAAAAAAAAAA","days":[7,20000],"at":5}'
    ids = b'{"v":2,"ids":"AAAAAAAAAAAA","days":[9,1]}'
    core = a_core({"d": bad, ids_key("d"): ids}, horizon=position(9))
    core.devices.cursors.horizon = position(9)
    assert core.devices.cursors.unread == []
    (push,) = deliver(core, "d", 5, {})
    assert push.repeat
    assert [key for key, _ in core.devices.cursors.unread] == ["d", ids_key("d")]


def test_no_device_is_missed_by_who_walks_over_all() -> None:
    store = CursorStore(8, {f"d{n}": Cursor(8, position(n)) for n in range(1200)})
    found = []
    for number, name in enumerate(store):
        found.append(name)
        for other in (f"d{number}", f"d{1199 - number}") if number < 600 else ():
            resting = store.pop(other)
            assert resting is not None
            store.put(other, resting)
    assert set(found) == {f"d{n}" for n in range(1200)}
    assert len(store) == 1200


def test_a_record_of_another_owner_is_kept_beside_until_the_owner_puts_what_it_knows() -> None:
    store = CursorStore(8)
    for term, at, settled in (("1.5", 6, 1), ("1.5", 7, 2), ("1.1", 4, 3), ("1.2", 9, 0)):
        store.add_record("d", term, position(at), Cursor(8, position(settled)).encode())
    assert (list(store), len(store)) == (["d"], 1)
    assert store["d"].position == position(2), "the last term had read what was stored before it began"
    assert store["d"].stored_in == ("1.5", "1.2", "1.1")
    store.add_record("d", "1.2", position(10), Cursor(8, position(4)).encode())
    assert store["d"].position == position(4), "what is late counts as well"
    store.put("d", Resting(Cursor(8, position(3)), position(1), suspected=False))
    assert list(store) == ["d"]
    assert store.look("d")[1:] == (position(1), False)  # type: ignore[index]
    store.remove("d")
    assert (list(store), store.get("d"), "d" in store) == ([], None, False)


def test_a_full_folder_ends_the_session_and_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> sqlite3.Connection:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(sqlite3, "connect", full)
    with pytest.raises(TransientError, match=r"disk is full.*TMPDIR"):
        CursorStore(8)


def test_what_a_takeover_needs_of_a_plain_record_is_read_without_decoding_it() -> None:
    def changed(**values: object) -> Cursor:
        cursor = Cursor(64)
        cursor.settle(position(3), "c-3", delivered=True, at_us=NOW)
        for name, value in values.items():
            setattr(cursor, name, value)
        return cursor

    parked = ParkedId(position(2), 0, True, True)
    store = CursorStore(64)
    for number, (cursor, is_plain) in enumerate(
        [
            (changed(), True),
            (changed(unproven=[Unproven(parked, NOW)]), True),
            (changed(online=True), True),
            (changed(maybe_seen_to=position(9)), False),
            (changed(resend=[parked], resend_from=position(1)), False),
            (changed(resend_from=position(1)), False),
        ]
    ):
        store.add_record(f"d{number}", "1.1", position(2), cursor.encode())
        plain, decoded = store.plain(f"d{number}"), store[f"d{number}"]
        assert (plain is not None) is is_plain, number
        if plain is not None:
            assert (plain.position, plain.online) == (decoded.done, decoded.online), number
            assert not decoded.resend
    store.put("d0", Resting(changed(), position(3)))
    assert store.plain("d0") is None, "no record as it was read"
    assert store.plain("unknown") is None
