"""H23: late records of a former owner are distinguished from those of its successor, also after their compaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

import pytest

from bridge.contract.commands import Command, CommandPosition
from bridge.contract.cursors import (
    OWNER_KEY,
    TERM_KEY,
    OwnerRecord,
    Term,
    Unproven,
    ids_key,
    key_of_term,
    read_term,
    split_key,
    term_record,
)
from bridge.contract.segments import ParkedId
from bridge.errors import ContractError
from bridge.push.actions import Push, StoreCursor, StoreReceipt
from bridge.push.cursor import Cursor
from bridge.push.cursor_log import CursorLog, CursorRecords, CursorRewriter, CursorsAged, CursorsForgotten
from bridge.push.partition import Partition
from tests.support.push_limits import Limits

SECOND = 1_000_000
NOW = 1_000 * SECOND
ONE = TypeVar("ONE")
Record = tuple[str, bytes, str]  # key, payload, producer


def position(number: int) -> CommandPosition:
    return CommandPosition(1, number, -1)


def command(number: int) -> Command:
    return Command(f"c{number}", "d", "t", b"x")


def cursor_at(number: int) -> Cursor:
    cursor = Cursor(8)
    for settled in range(1, number + 1):
        cursor.settle(position(settled), f"c{settled}", delivered=True)
    return cursor


SECRET = b"s" * 32


TERMS = {"former": "7.0", "successor": "7.3", "hangs": "7.3", "next": "7.4", "second": "7.8"}
"""Where the first record of each owner is, in the log of its test."""


def at(number: int, writer: str, device: str = "d") -> Record:
    return of_term(device, cursor_at(number).encode(), writer)


def of_term(key: str, payload: bytes, writer: str) -> Record:
    return key_of_term(key, TERMS.get(writer, "")), payload, writer


def term(writer: str) -> Record:
    return of_term(TERM_KEY, term_record(Term(SECRET)), writer)


def owner(writer: str, serial: int = 1, *, clean: bool = False) -> Record:
    return OWNER_KEY, OwnerRecord(writer, serial, clean).encode(), writer


class Compacted(list[Record]):
    """A log of which some records are gone; ``numbers`` are the entries of the others."""

    numbers: Sequence[int]


def compacted(log: Sequence[Record], count: int) -> Compacted:
    """Return what is read of a log of which the first ``count`` records were compacted."""
    last = {key: number for number, (key, _, _) in enumerate(log[:count])}
    numbers = [number for number in range(len(log)) if number >= count or last[log[number][0]] == number]
    found = Compacted(log[number] for number in numbers if log[number][1])
    found.numbers = [number for number in numbers if log[number][1]]
    return found


def read(log: Sequence[Record], own_term: str = "7.90") -> CursorRecords:
    found = CursorRecords(8)
    numbers = log.numbers if isinstance(log, Compacted) else range(len(log))
    for number, (key, payload, _) in zip(numbers, log, strict=True):
        assert found.take(key, payload, CommandPosition(7, number, -1))
    found.whole()
    found.term = found.term if found.term.secret else Term(SECRET)
    found.left_us, found.own_term = NOW - SECOND, own_term
    return found


class Log:
    """The log of a partition, as its owner of that name writes it."""

    unanswered = 0

    def __init__(self, writer: str) -> None:
        self.writer = writer
        self.records: list[Record] = []

    def write_record(self, key: str, payload: bytes, _token: object) -> None:
        self.records.append((key, payload, self.writer))

    def write_cursor(self, records: Sequence[tuple[str, bytes]], token: object) -> None:
        for key, payload in records:
            self.write_record(key, payload, token)


def taken_over(log: Sequence[Record], last: int, writer: str = "next", own_term: str = "7.90") -> tuple[Partition, Log]:
    """Take over as a session does; ``last`` is the last command that is there then."""
    found, partition_log = read(log, own_term), Log(writer)
    CursorRewriter(cast(CursorLog, partition_log)).taken_over(found, position(last))
    core = Partition(
        0,
        Limits().nested(),
        found.by_device,
        None if found.clean else position(last),
        found.parked,
        owner=writer,
        term=own_term,
        now_us=NOW,
        left_us=found.left_us,
    )
    core.link_up(reports_absence=True)
    return core, partition_log


def of(kind: type[ONE], actions: Sequence[object]) -> list[ONE]:
    return [one for one in actions if isinstance(one, kind)]


def sent(core: Partition, until: int) -> dict[int, bool]:
    """Have the commands 1 to ``until`` come, and all succeed. Returns the number of each that is pushed, and its mark."""
    found: dict[int, bool] = {}
    for number in range(1, until + 1):
        core.arrived(position(number), command(number), NOW)
    while actions := core.take(NOW):
        for push in of(Push, actions):
            found[push.position.entry] = push.repeat
            core.links[""].sent(push.number, NOW)
            core.confirmed(push.number, 0, NOW)
        for stored in of(StoreCursor, actions):
            core.cursor_stored(stored.device)
        for receipt in of(StoreReceipt, actions):
            core.settlement.receipt_stored(receipt.position)
    return found


BEFORE = [owner("former"), term("former"), at(1, "former"), owner("successor"), term("successor")]
NEXT = [(TERM_KEY, term_record(Term(SECRET)), "next"), *(("d", cursor_at(n).encode(), "next") for n in (2, 4))]
SUCCESSOR = [at(2, "successor"), at(4, "successor"), at(1, "successor", "other")]
LEFT = [owner("successor", 2, clean=True)]
LATE = [at(1, "former")]
PROOF = [owner("former", 2)]


@pytest.mark.parametrize("left", [[], LEFT], ids=["died", "left"])
@pytest.mark.parametrize("late", [LATE, LATE + PROOF, PROOF + LATE], ids=["cursor", "then proof", "proof"])
@pytest.mark.parametrize("then", [[], [owner("successor", 3)]], ids=["", "successor proves"])
def test_h23_nothing_is_repeated_wherever_a_late_cursor_and_a_compaction_fall(
    left: list[Record], late: list[Record], then: list[Record]
) -> None:
    log = [*BEFORE, *SUCCESSOR, *left, *late, *then]
    for count in range(len(log) + 1):
        core, _ = taken_over(compacted(log, count), 5)
        pushed = sent(core, 7)
        assert list(pushed) == [5, 6, 7], f"with {count} compacted"
        assert not any(pushed[number] for number in (6, 7)), "no device can have received what came after the takeover"


def test_h23_what_a_former_owner_repeats_after_its_term_was_removed_is_merged_and_removed_again() -> None:
    log = [*BEFORE, *SUCCESSOR]
    for last in (5, 6, 7):
        log.append(at(1, "former"))
        own_term = f"7.{len(log):x}"
        core, written = taken_over(log, last, own_term, own_term)
        log += [owner(own_term), *written.records]
        assert read(compacted(log, len(log))).by_device["d"].position == position(4)
        log += [(key, payload, own_term) for key, payload in core.devices.records_of("d")]
        assert read(compacted(log, len(log))).by_device["d"].position == position(4)
        assert [key for key, _, _ in compacted(log, len(log)) if split_key(key)[0] == "d"] == [f"d\0{own_term}"]


def test_h23_an_owner_that_was_replaced_before_its_term_began_replaces_nothing() -> None:
    """All of what it rewrites at its takeover comes late, with its term."""
    log = [
        *BEFORE[:3],
        owner("hangs"),
        owner("next"),
        *[of_term(*one) for one in NEXT],
        *LEFT,
        at(1, "hangs"),
        term("hangs"),
    ]
    for count in range(len(log) + 1):
        core, _ = taken_over(compacted(log, count), 5)
        assert list(sent(core, 7)) == [5, 6, 7]


def test_what_a_successor_left_untouched_counts_as_it_is() -> None:
    log = [at(1, "former", "quiet"), *BEFORE, *SUCCESSOR, *LEFT]
    for count in range(len(log) + 1):
        found = read(compacted(log, count))
        assert (found.by_device["quiet"].position, found.clean) == (position(1), True)


def test_h26_a_late_write_undoes_no_going_back_although_all_that_was_before_it_is_compacted_away() -> None:
    back = cursor_at(3)
    back.resend_parked([ParkedId(position(2), maybe_seen=True, resend=True)])
    written = of_term("d", back.encode(), "successor")
    found = read(compacted([*BEFORE, written, *LATE, at(3, "former")], 6))
    assert found.by_device["d"].resend_from == back.resend_from


def test_up_to_where_a_device_maybe_seen_its_commands_survives_encoding_until_it_is_passed() -> None:
    cursor = cursor_at(2)
    cursor.maybe_seen_to = position(4)
    read_back = Cursor.decode(cursor.encode(), 8)
    assert [read_back.maybe_seen(position(number)) for number in (3, 4, 5)] == [True, True, False]
    merged = cursor_at(2)
    merged.merge(read_back)
    assert merged.maybe_seen_to == position(4)
    read_back.settle(position(4), "c4", delivered=True)
    assert Cursor.decode(read_back.encode(), 8).maybe_seen_to is None


def unproven_at(number: int, at_us: int) -> Unproven:
    return Unproven(ParkedId(position(number), maybe_seen=True, resend=True), at_us)


def confirmed(numbers: Sequence[int], at_us: int) -> Cursor:
    cursor = cursor_at(numbers[-1])
    for number in numbers:
        cursor.add_unproven(unproven_at(number, at_us + number))
    return cursor


@pytest.mark.parametrize("last", [16, 17])
def test_h26_a_late_cursor_hides_nothing_that_the_broker_alone_confirmed_to_the_successor(last: int) -> None:
    """The successor sent what the former owner had sent; the device was seen in between."""
    former, successor = confirmed(range(last - 15, last + 1), 1000), confirmed(range(1, 17), 5000)
    found = read([*BEFORE, of_term("d", successor.encode(), "successor"), of_term("d", former.encode(), "former")])
    cursor = found.by_device["d"]
    cursor.device_seen(3000)
    expected = range(last - 15, 17)
    assert [one for one in cursor.unproven if one.at_us > 3000] == [unproven_at(n, 5000 + n) for n in expected]
    assert cursor.position == position(last)


@pytest.mark.parametrize(
    "end", [[*LEFT, at(3, "former")], [at(3, "former"), term("successor"), *LEFT]], ids=["after it left", "before"]
)
def test_h25_what_a_late_cursor_passed_gets_its_receipt_although_the_successor_left_cleanly(end: list[Record]) -> None:
    log = [*BEFORE, at(2, "successor"), *end]
    for count in range(len(BEFORE) + 2):
        core, _ = taken_over(compacted(log, count), 3)
        core.arrived(position(3), command(3), NOW)
        assert [one.receipt.command_id for one in of(StoreReceipt, core.take(NOW))] == ["c3"]
    log = [*log, *end][:8]
    log += [owner("second"), at(3, "second"), term("second"), owner("second", 2, clean=True)]
    assert read(log).clean, "the second one has written it"


@pytest.mark.parametrize("noticed", [False, True])
def test_h26_what_the_broker_alone_confirmed_to_a_former_owner_is_sent_again_with_what_its_successor_resends(
    noticed: bool,
) -> None:
    """The former owner notices as well that the device was away, or not."""
    former, successor = confirmed([1, 2], 1000), cursor_at(1)
    if noticed:
        former.resend_parked([one.one for one in former.unproven])
        former.unproven = []
    successor.resend_parked([unproven_at(1, 0).one])
    found = read([*BEFORE, of_term("d", successor.encode(), "successor"), of_term("d", former.encode(), "former")])
    cursor = found.by_device["d"]
    assert cursor.resend == [unproven_at(1, 0).one, unproven_at(2, 0).one]
    assert cursor.position == position(1)


def test_a_term_of_another_version_is_refused() -> None:
    with pytest.raises(ContractError):
        CursorRecords(8).take(TERM_KEY, b'{"v":9,"term":1}')


@pytest.mark.parametrize("secret", ["", ',"secret":1', ',"secret":"x"', ',"secret":"00"', ',"secret":null'])
def test_a_term_without_a_secret_is_refused(secret: str) -> None:
    with pytest.raises(ContractError, match="secret"):
        CursorRecords(8).take(TERM_KEY, b'{"v":1,"term":1%s}' % secret.encode())


def test_h36_the_secret_of_a_partition_passes_from_owner_to_owner() -> None:
    given = Term(bytes(range(32)))
    records = [owner("first"), (TERM_KEY, term_record(given), "first"), at(1, "first")]
    _, second = taken_over(records, 2, "second")
    written = [read_term(payload) for key, payload, _ in second.records if payload and split_key(key)[0] == TERM_KEY]
    assert written == [given]
    assert second.records[-1] == (TERM_KEY, b"", "second"), "that of the first one is removed"


def test_the_term_is_rewritten_after_all_old_records_and_before_lost_ones() -> None:
    """Behind it another one's record is late: it may not be put behind such a one before our own word is."""
    cursors = {f"d{number}": cursor_at(1) for number in range(50)}
    core, log = Partition(0, Limits().nested(), cursors, None), Log("us")
    rewriting = CursorRewriter(cast(CursorLog, log))
    rewriting.begin(CursorsAged(), core)
    for turn in range(100):
        rewriting.turn(core, float(turn))
    assert [key for key, _, _ in log.records].index(TERM_KEY) == len(log.records) - 1 == 100
    log.records.clear()
    rewriting.begin(CursorsForgotten(), core)
    rewriting.turn(core, 200.0)
    assert [key for key, _, _ in log.records].index(TERM_KEY) == 0
    assert len(log.records) == 51


def test_ids_that_a_crash_left_without_their_cursor_are_removed_after_the_takeover() -> None:
    """A rewrite stores a device's ids before its first cursor; the owner dies in between."""
    (key, payload), _ = cursor_at(0).records("d", TERMS["former"], all_keys=True)
    found, log = read([(key, payload, "former")]), Log("next")
    rewriting = CursorRewriter(cast(CursorLog, log))
    rewriting.taken_over(found, position(1))
    rewriting.turn(Partition(0, Limits().nested(), found.by_device, position(1)), 1.0)
    removed = key_of_term(ids_key("d"), TERMS["former"])
    assert [record for record in log.records if split_key(record[0])[0] != TERM_KEY] == [(removed, b"", "next")]
