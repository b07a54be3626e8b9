"""The devices that patterns of groups may mean, found by the keys of cursors."""

from __future__ import annotations

from typing import cast

from bridge.contract import PRESENCE_TOPIC
from bridge.contract.commands import CommandPosition
from bridge.contract.cursors import OWNER_KEY, OwnerRecord
from bridge.contract.segments import segment_key
from bridge.pulsar.client import PulsarClient
from bridge.push.cursor import Cursor
from bridge.push.groups.owner import KnownDevices
from bridge.push.groups.roster import Membership
from bridge.settings import PulsarSettings
from bridge.settings.push import GroupRule
from tests.support.stored_message import StoredMessage


class Partition:
    """One partition of each topic, with these records in that of the cursors."""

    settings = PulsarSettings()

    def __init__(self, records: list[tuple[str, bytes]]) -> None:
        self._left = [StoredMessage(number, *record) for number, record in enumerate(records)]

    def partitioned(self, topic: str) -> list[str]:
        return [topic]

    def reader(self, topic: str, *_args: object, **_more: object) -> Partition:
        return Partition([("hall-2", b"")]) if PRESENCE_TOPIC in topic else self

    def has_message_available(self) -> bool:
        return bool(self._left)

    def read_next(self, _wait_ms: int) -> StoredMessage:
        return self._left.pop(0)

    def close(self) -> None:
        pass


def test_h43_a_pattern_means_devices_that_had_a_command_and_no_record_of_pushs_own() -> None:
    cursor, records = Cursor(256), list[tuple[str, bytes]]()
    for number in range(30):
        cursor.settle(CommandPosition(1, number, -1), f"id-{number}", delivered=True)
        records += cursor.records("press-1")
    assert {key for key, _ in records} > {"press-1"}, "some of its ids stand apart"
    records += [
        (OWNER_KEY, OwnerRecord("us", 1).encode()),
        (segment_key("press-2", "us", 1), b"{}"),
        ("\0parked\0x", b"{}"),
        ("\0later\0press-3", b"{}"),
        ("", b""),
    ]
    membership = Membership([GroupRule(name="all", devices=("*",))])
    KnownDevices(cast(PulsarClient, Partition(records)), membership).take()
    assert membership.members("all") == {"press-1", "press-2"}, "hall-2 is known to ingest and is still no member"


def test_h43_patterns_mean_no_more_devices_than_the_setting() -> None:
    membership = Membership([GroupRule(name="all", devices=("*", "named"))], most=3)
    membership.put("other", "put", member=True)
    membership.knows(["a"])
    membership.knows(f"later-{number}" for number in range(100))
    members = membership.members("all")
    assert {"named", "put", "a"} <= members
    assert len(members) == 3
    membership.put("all", "explicit", member=True)
    assert membership.members("all") == members | {"explicit"}
