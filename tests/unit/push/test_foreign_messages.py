"""Messages that no writer of ours wrote, and threads that something unforeseen ends: neither goes by without a word."""

from __future__ import annotations

from typing import cast

import pytest
import structlog

from bridge.contract import C_DEVICE, C_GROUP, C_GROUP_ID, C_REF, C_SIZE
from bridge.contract.commands import Command, CommandPosition, GroupRef, decode_command, encode_command
from bridge.contract.cursors import OWNER_KEY, OwnerRecord
from bridge.contract.segments import read_segment, segment_key
from bridge.contract.tagged_positions import PositionTags
from bridge.errors import ContractError
from bridge.inspect.devices.view import PartitionView
from bridge.mqtt.client import Link
from bridge.pulsar.client import NO_TEXT, MessageId, PulsarClient, ReceiveTimeout, message_id
from bridge.pulsar.messages import StoredMessage
from bridge.pulsar.read_budget import ReadBudget
from bridge.pulsar.sending import Writes
from bridge.pulsar.subscription import Subscription
from bridge.push.actions import Ack, DeadLetter, Pull, Push, StoreReceipt
from bridge.push.cursor import Cursor
from bridge.push.cursor_log import CursorLog, CursorRecords
from bridge.push.effects import Effects
from bridge.push.partition import Partition
from bridge.push.partition_log import PartitionLog, receive_commands
from bridge.push.puller import Puller
from bridge.push.request_log import RequestLog
from bridge.settings import Settings
from tests.support.push_limits import Limits
from tests.support.stored_message import StoredMessage as Record
from tests.support.waiting import poll_for
from tests.unit.push.test_effects import METRICS

NOW = 1_000_000_000


class FromPulsar:
    """A message as Pulsar's client gives it; ``bad`` names what of it is no UTF-8."""

    def __init__(self, number: int, bad: str = "") -> None:
        self._id = message_id(0, 1, number, -1)
        self._command = Command(f"c-{number}", "d", "commands/d", b"payload")
        self._bad = bad

    def message_id(self) -> MessageId:
        return self._id

    def data(self) -> bytes:
        return self._command.payload

    def publish_timestamp(self) -> int:
        return 0

    def partition_key(self) -> str:
        return b"\xff".decode() if "key" in self._bad else self._command.device

    def properties(self) -> dict[str, str]:
        return {"p": b"\xff".decode()} if "property" in self._bad else encode_command(self._command)


class Consumer:
    """A client whose consumer gives these messages, and then closes the gate through which its reader goes."""

    def __init__(self, budget: ReadBudget, messages: list[FromPulsar]) -> None:
        self._budget = budget
        self._messages = messages

    def consumer(self, *_args: object, **_more: object) -> Consumer:
        return self

    def is_connected(self) -> bool:
        return True

    def receive(self, _wait_ms: int) -> FromPulsar:
        if not self._messages:
            self._budget.close()
            raise ReceiveTimeout("nothing came")
        return self._messages.pop(0)


@pytest.mark.parametrize("bad", ["key", "property", "key and property"])
def test_a_message_that_is_no_text_is_a_dead_letter_and_the_next_one_arrives(bad: str) -> None:
    arrived: list[object] = []
    budget = ReadBudget(10, 1000)
    consumer = Consumer(budget, [FromPulsar(0, bad), FromPulsar(1)])
    subscription = Subscription(cast(PulsarClient, consumer), "commands", "push", queue=1)
    receive_commands(subscription, budget, arrived.append)
    core = Partition(0, Limits().nested(), {}, None)
    core.link_up()
    effects = effects_of(core, budget)
    for event in arrived:
        assert isinstance(event, StoredMessage)
        effects.arrived(event)
    letter, push = core.take(NOW)
    key = "" if bad == "key and property" else "d"
    assert letter == DeadLetter(CommandPosition(1, 0, -1), key, NO_TEXT)
    assert isinstance(push, Push)
    assert push.command.command_id == "c-1"


def effects_of(core: Partition, budget: ReadBudget) -> Effects:
    log, tags = cast(PartitionLog, None), PositionTags(b"secret", 0)
    return Effects(Settings(), core, {"": cast(Link, None)}, log, budget, METRICS, lambda _at: None, tags)


def cursor_log(records: Records) -> CursorLog:
    return CursorLog(cast(PulsarClient, records), "cursors", Writes(print))


class Records:
    """A client whose readers give these records of a cursors partition; a key of None is no UTF-8."""

    def __init__(self, *records: tuple[str | None, bytes]) -> None:
        self._records = list(enumerate(records))

    def reader(self, *_args: object, **_more: object) -> Records:
        return self

    def read_next(self, _wait_ms: int) -> Record:
        number, (key, payload) = self._records.pop(0)
        return Record(number, key or "", payload, bad_key=key is None)

    def close(self) -> None:
        pass


def test_a_foreign_record_among_the_cursors_is_named_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    cursor = Cursor(8, CommandPosition(3, 7, -1))
    own = OwnerRecord("us", 1)
    records = Records((None, b"?"), ("d", cursor.encode()), (OWNER_KEY, own.encode()))
    log = cursor_log(records)
    with structlog.testing.capture_logs() as logs:
        found = log.read(own, 8)
    assert {name: one.position for name, one in found.by_device.items()} == {"d": cursor.position}
    assert [(line["log_level"], line["position"]) for line in logs] == [("warning", str(CommandPosition(3, 0, -1)))]


SERVED, GONE, US = OwnerRecord("a", 4, clean=True), OwnerRecord("b", 2, idle=True), OwnerRecord("us", 1)


@pytest.mark.parametrize(
    ("former", "clean"),
    [
        ([], True),
        ([SERVED], True),
        ([SERVED, GONE], True),
        ([OwnerRecord("a", 4), GONE], False),
        ([SERVED, GONE, OwnerRecord("b", 3)], False),
        ([GONE], False),  # it may hide the record of an owner, which was compacted away
    ],
)
def test_a_takeover_that_failed_before_it_sent_anything_leaves_the_former_owners_end_as_it_was(
    former: list[OwnerRecord], clean: bool
) -> None:
    records = Records(*((OWNER_KEY, one.encode()) for one in [*former, US]))
    assert cursor_log(records).read(US, 8).clean is clean


@pytest.mark.parametrize("key", ["\0ids\0", "\0parked\0x", "\0parked\0x\0", "\0other"])
def test_a_record_under_a_key_that_no_device_and_no_owner_has_ends_nothing(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, cursor = Cursor(8), Cursor(8, CommandPosition(3, 7, -1))
    theirs.settle(CommandPosition(3, 1, -1), "theirs", delivered=True)
    before, own = OwnerRecord("them", 4, clean=True), OwnerRecord("us", 1)
    stored: list[tuple[str, Cursor | OwnerRecord]] = [
        (OWNER_KEY, before),
        ("d", cursor),
        (key, theirs),
        (OWNER_KEY, own),
    ]
    log = cursor_log(Records(*((name, one.encode()) for name, one in stored)))
    with structlog.testing.capture_logs() as logs:
        found = log.read(own, 8)
    assert list(found.by_device) == ["d"]
    assert not found.by_device["d"].knows("theirs")
    assert (found.parked, found.clean) == ({}, True)
    assert [(line["position"], line["why"]) for line in logs] == [
        (str(CommandPosition(3, 2, -1)), f"its key is {key!r}")
    ]
    log = cursor_log(Records((key, theirs.encode()), (OWNER_KEY, own.encode())))
    assert log.proven_since(message_id(0, 3, 0, -1), own) is not None
    view = PartitionView(0)
    for name, one in stored:
        view.take_record(name, one.encode())
    assert [one.device for one in view.devices()] == ["d"]
    assert view.bad == 1


@pytest.mark.parametrize("key", [OWNER_KEY, "\0parked\0x\0d"])
def test_a_record_of_another_kind_under_a_key_of_pushs_own_ends_nothing(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, cursor, own = Cursor(8), Cursor(8, CommandPosition(3, 7, -1)), OwnerRecord("us", 1)
    log = cursor_log(Records(("d", cursor.encode()), (key, theirs.encode()), (OWNER_KEY, own.encode())))
    with structlog.testing.capture_logs() as logs:
        found = log.read(own, 8)
    assert list(found.by_device) == ["d"]
    core = Partition(0, Limits().nested(), found.by_device, CommandPosition(3, 9, -1), found.parked)
    assert len(logs) + len(core.parking.unread) == 1, "it is reported"


@pytest.mark.parametrize(
    ("key", "payload"),
    [(OWNER_KEY, b'{"v":9,"owner":"x"}'), (segment_key("d", "x", 1), b'{"v":9}'), ("d", b'{"v":9}')],
)
def test_a_record_of_a_later_version_is_not_taken_for_a_foreign_one(key: str, payload: bytes) -> None:
    records = CursorRecords(8)

    def take() -> None:
        assert records.take(key, payload)
        read_segment(records.parked["d"][key])

    with pytest.raises(ContractError, match="version 9"):
        take()


def test_h44_a_takeover_goes_on_without_the_records_that_it_cannot_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cursor, own = Cursor(8, CommandPosition(3, 7, -1)), OwnerRecord("us", 1)
    segment = segment_key("d", "x", 1)
    records = Records(
        (OWNER_KEY, OwnerRecord("them", 4, clean=True).encode()),
        ("d", cursor.encode()),
        ("d", b'{"v":2,"position":[1e999,0,0],"ids":""}'),
        ("lost", b'{"v":2,"position":[0,0,0],"ids":"x"}'),
        ("\0ids\0d", b'{"v":2,"ids":"AAAAAAAAAAAA","days":[1e12,1]}'),
        (segment, b'{"v":1,"parked":[99999999999999999999,0,0,0,0]}'),
        (OWNER_KEY, b'{"v":1,"owner":"them","serial":1e999}'),
        ("\0term", b'{"v":9,"term":1}'),
        (OWNER_KEY, own.encode()),
    )
    log = cursor_log(records)
    with structlog.testing.capture_logs() as logs:
        found = log.read(own, 8)
    assert {name: one.position for name, one in found.by_device.items()} == {
        "d": cursor.position,
        "lost": CommandPosition(-1, -1, -1),
    }
    assert found.by_device.uncertain == {"d", "lost"}, "what they have had is not known"
    assert not found.clean, "what is sent is marked as a repetition"
    assert len(logs) == 5
    assert {(line["log_level"], line["shown"]) for line in logs} == {("warning", 1)}
    core = Partition(0, Limits().nested(), found.by_device, CommandPosition(3, 9, -1), found.parked)
    assert [key for key, _ in core.parking.unread] == [segment]


@pytest.mark.parametrize("device", ["\0owner", "\0parked\0x", "\1" * 5_000_000])
def test_a_command_to_a_device_of_such_a_name_is_a_dead_letter_with_a_receipt(device: str) -> None:
    budget = ReadBudget(10, 10_000)
    core = Partition(0, Limits().nested(), {}, None)
    core.link_up()
    effects = effects_of(core, budget)
    properties = encode_command(Command("c", "d", "t", b"")) | {C_DEVICE: device}
    position = CommandPosition(1, 0, -1)
    effects.arrived(StoredMessage(position, message_id(0, 1, 0, -1), device, b"", properties, 0))
    (letter,) = core.take(NOW)
    assert isinstance(letter, DeadLetter)
    assert letter.reason.startswith("device: ")
    core.settlement.dead_letter_stored(position)
    (receipt,) = core.take(NOW)
    assert isinstance(receipt, StoreReceipt)
    assert (receipt.receipt.state, receipt.receipt.device) == ("rejected", device[:16_384])
    assert len(receipt.receipt.encode()) < 1_000_000, "Pulsar takes it"
    core.settlement.receipt_stored(position)
    assert core.take(NOW) == [Ack(position)], "and no cursor is written"


class Broken:
    """A client whose consumers and readers end in an unexpected error."""

    def consumer(self, *_args: object, **_more: object) -> Broken:
        return self

    reader = consumer

    def receive(self, _wait_ms: int) -> None:
        raise LookupError("unforeseen")

    read_next = receive

    def close(self) -> None:
        pass


def test_an_error_that_ends_a_thread_beside_the_session_is_reported() -> None:
    client, failed = cast(PulsarClient, Broken()), list[Exception]()
    puller = Puller(client, "commands", "moved", 0, lambda _event: None, failed.append, max_bytes=1)
    puller.begin(Pull("d", 1, (CommandPosition(1, 0, -1),), (None,)))
    poll_for(lambda: len(failed) == 1, 30, "the puller has reported")
    requests = RequestLog(client, "resume", "commands", 0, most_found=1, post=lambda _event: None, failed=failed.append)
    requests.start()
    poll_for(lambda: len(failed) == 2, 30, "the requests have reported")
    puller.close()
    requests.close()
    assert {type(error) for error in failed} == {LookupError}


@pytest.mark.parametrize("place", [f"{2**63}:0:-1", "-1:0:-1", f"0:{2**63}:-1", f"0:0:{2**31}", "0:0:-2"])
def test_a_reference_to_a_payload_outside_pulsars_positions_is_refused(place: str) -> None:
    entry = Command("c", "d", "t", b"", ref=GroupRef("g", "c", CommandPosition(1, 2, -1), 6))
    properties = encode_command(entry)
    assert decode_command(properties, b"") == entry
    with pytest.raises(ContractError, match=C_REF):
        decode_command(properties | {C_REF: place}, b"")


@pytest.mark.parametrize(
    ("field", "value"),
    [(C_GROUP, "g" * 1025), (C_GROUP, "\1"), (C_GROUP_ID, "c" * 1025), (C_SIZE, "-1"), (C_SIZE, str(2**62))],
)
def test_h35_the_names_of_an_index_entry_fit_into_its_receipt_and_its_size_into_the_window(
    field: str, value: str
) -> None:
    entry = Command("c", "d", "t", b"", ref=GroupRef("g", "c", CommandPosition(1, 2, -1), 6))
    with pytest.raises(ContractError, match=field):
        decode_command(encode_command(entry) | {field: value}, b"", 1024)


@pytest.mark.parametrize("key", ["", "d" * 20_000])
def test_h44_what_cannot_be_read_under_a_key_that_no_device_has_makes_no_cursor(key: str) -> None:
    records = CursorRecords(8)
    with pytest.raises(ContractError):
        records.take(key, b"x")
    assert (records.by_device, records.by_device.uncertain) == ({}, set())
