"""When a command that was sent counts as ended."""

from __future__ import annotations

import pytest

from bridge.contract import FAILURES, Receipt
from bridge.contract.commands import Command
from bridge.contract.groups import GroupCommand, entry_id
from bridge.contract.partitioning import partition_of
from bridge.inspect.awaited import Awaited

GROUP = GroupCommand("g-1", "presses", "", b"")


def command(device: str, command_id: str) -> Command:
    return Command(command_id, device, "t", b"")


def of_group(state: str, members: int = 0) -> Receipt:
    return Receipt("g-1", "", "t", state, group="presses", group_command_id="g-1", members=members)


def of_member(device: str, state: str) -> Receipt:
    return Receipt(entry_id("g-1", device), device, "t", state, group="presses", group_command_id="g-1")


@pytest.mark.parametrize("state", ["delivered", "answered", "duplicate", "a later one", *FAILURES])
def test_a_command_ends_with_its_first_receipt(state: str) -> None:
    awaited = Awaited()
    awaited.add("c", device="d")
    awaited.add("c", device="e")
    assert not awaited.take(Receipt("c", "other", "t", state))
    assert not awaited.take(Receipt("other", "d", "t", state))
    assert awaited.take(Receipt("c", "d", "t", state))
    assert not awaited.take(Receipt("c", "d", "t", state)), "a receipt may come twice"
    assert len(awaited) == 1
    assert awaited.take(Receipt("c", "e", "t", state))
    assert not awaited


@pytest.mark.parametrize("expanded_at", [0, 1, 3])
def test_a_group_command_ends_with_the_last_of_its_members(expanded_at: int) -> None:
    awaited = Awaited()
    awaited.add(GROUP.command_id, group=GROUP.group)
    receipts = [of_member("a", "delivered"), of_member("b", "expired"), of_member("c", "delivered")]
    receipts.insert(expanded_at, of_group("expanded", 3))
    for receipt in receipts:
        assert awaited
        assert not awaited.take(of_member("a", "duplicate"))
        assert awaited.take(receipt)
        assert not awaited.take(receipt) or receipt.state == "expanded"
    assert not awaited


@pytest.mark.parametrize("receipt", [of_group("expanded", 0), of_group("rejected"), of_group("duplicate")])
def test_a_group_command_without_members_ends_with_its_own_receipt(receipt: Receipt) -> None:
    awaited = Awaited()
    awaited.add(GROUP.command_id, group=GROUP.group)
    assert awaited.take(receipt)
    assert not awaited


def test_only_the_partitions_of_the_devices_are_read_and_all_for_a_group() -> None:
    awaited = Awaited()
    awaited.add("c", device="d")
    assert awaited.partitions(8) == [partition_of("d", 8)]
    awaited.add(GROUP.command_id, group=GROUP.group)
    assert awaited.partitions(8) == list(range(8))


def test_the_publish_of_a_broadcast_is_reported_and_ends_nothing() -> None:
    awaited = Awaited()
    awaited.add(GROUP.command_id, group=GROUP.group)
    assert awaited.take(of_group("broadcast"))
    assert awaited.take(of_group("expanded", 1))
    assert awaited.take(of_group("broadcast")), "of another broker"
    assert awaited
    assert awaited.take(of_member("a", "answered"))
    assert not awaited
