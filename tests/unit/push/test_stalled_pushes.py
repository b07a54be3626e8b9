"""What a partition does while Pulsar does not give the payload of a group command, and when it comes late."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import cast

from prometheus_client import CollectorRegistry

from bridge.contract.commands import Command, CommandPosition, GroupRef
from bridge.contract.tagged_positions import PositionTags
from bridge.mqtt.client import Link
from bridge.mqtt.types import Connected, Disconnected
from bridge.pulsar.read_budget import ReadBudget
from bridge.push.actions import Action, StoreCursor, StoreReceipt
from bridge.push.effects import Effects
from bridge.push.metrics import PushMetrics
from bridge.push.partition import Partition
from bridge.push.partition_log import PartitionLog
from bridge.settings import Settings
from bridge.settings.mqtt import MqttSettings
from tests.support.push_limits import Limits

METRICS = PushMetrics(CollectorRegistry())
GROUP = CommandPosition(3, 1, -1)
REF = GroupRef("g", "g-1", GROUP, 7)


class Connection:
    """Keeps published commands, and confirms them on request."""

    client_id = "push"
    connected = True
    epoch = 1
    granted = Connected(1, False, 65535)
    settings = MqttSettings()

    def __init__(self) -> None:
        self.open: list[tuple[str, bytes, Callable[[int], None]]] = []
        self.sent: list[tuple[str, bytes]] = []
        self.woken = 0

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        confirmed: Callable[[int], None],
        sent: Callable[[], None],
        **_more: object,
    ) -> None:
        self.sent.append((topic, payload))
        self.open.append((topic, payload, confirmed))
        sent()

    def wake(self) -> None:
        self.woken += 1


class Written:
    """The Pulsar of one partition: stores each write at the end of a turn."""

    partition = 0

    def __init__(self) -> None:
        self.tokens: list[Action] = []
        self.states: dict[str, tuple[str, int]] = {}

    @property
    def cursors(self) -> Written:
        """As of a partition: its cursors are written here as well."""
        return self

    def write_cursor(self, _records: object, token: Action) -> None:
        self.tokens.append(token)

    def write_receipt(self, _key: str, _payload: bytes, token: Action) -> None:
        assert isinstance(token, StoreReceipt)
        self.states[token.receipt.command_id] = token.receipt.state, token.receipt.attempts
        self.tokens.append(token)

    def acknowledge(self, _message: object) -> None:
        pass


class GroupPartition:
    """A partition whose group payloads come when ``comes`` is called."""

    def __init__(self, limits: Limits) -> None:
        self.core = Partition(0, limits.nested(), {}, None)
        self.core.link_up()
        self.link, self.log = Connection(), Written()
        self.count = 0
        self.effects = Effects(
            Settings(),
            self.core,
            {"": cast(Link, self.link)},
            cast(PartitionLog, self.log),
            cast(ReadBudget, None),
            METRICS,
            lambda _at: None,
            PositionTags(b"secret", 0),
        )

    def arrives(self, device: str, *, ref: GroupRef | None = REF, expires_at_ms: int = 0) -> None:
        self.count += 1
        payload = b"" if ref else b"own"
        one = Command(f"{device}-{self.count}", device, f"t/{device}", payload, ref=ref)
        one = replace(one, expires_at_ms=expires_at_ms)
        self.core.arrived(CommandPosition(7, self.count, -1), one, time.time_ns() // 1000)

    def turns(self) -> None:
        """Do what there is to do, until nothing wakes the link any more; acknowledgements end here."""
        woken = -1
        while woken != self.link.woken or self.log.tokens:
            woken = self.link.woken
            tokens, self.log.tokens = self.log.tokens, []
            for token in tokens:
                assert isinstance(token, (StoreCursor, StoreReceipt))
                self.effects.stored(token)
            for action in self.core.take(time.time_ns() // 1000):
                if type(action).__name__ != "Ack":
                    self.effects.begin(action)

    def confirms(self) -> None:
        taken, self.link.open = self.link.open, []
        for _, _, confirmed in taken:
            confirmed(0)
        self.turns()

    @property
    def topics(self) -> list[str]:
        return [topic for topic, _ in self.link.sent]


def test_members_that_wait_for_a_payload_leave_the_window_to_the_others() -> None:
    partition = GroupPartition(Limits(window=4))
    for number in range(20):
        partition.arrives(f"m{number}")
    for number in range(6):
        partition.arrives(f"other{number}", ref=None)
    partition.turns()
    assert partition.topics == [f"t/other{number}" for number in range(4)], "as many as the window has"
    assert partition.core.links[""].in_flight == 4
    partition.confirms()
    assert partition.topics == [f"t/other{number}" for number in range(6)]


def test_when_the_payload_comes_the_members_go_as_the_window_has_room_and_each_in_order() -> None:
    partition = GroupPartition(Limits(window=4))
    for number in range(10):
        partition.arrives(f"m{number}")
        partition.arrives(f"m{number}", ref=None)
    partition.turns()
    assert partition.topics == []
    partition.effects.payload_came(GROUP, b"payload")
    partition.turns()
    while partition.link.open:
        assert len(partition.link.open) <= 4, "never more than the window"
        assert partition.core.links[""].in_flight == len(partition.link.open)
        partition.confirms()
    for number in range(10):
        got = [payload for topic, payload in partition.link.sent if topic == f"t/m{number}"]
        assert got == [b"payload", b"own"]
    assert partition.core.settled
    assert set(partition.log.states.values()) == {("delivered", 1)}


def test_what_waits_when_the_connection_ends_counts_for_no_window_of_the_next_one() -> None:
    partition = GroupPartition(Limits(window=2))
    for number in range(8):
        partition.arrives(f"m{number}")
    partition.turns()
    partition.core.link_down(time.time_ns() // 1000)
    partition.effects.link_down(Disconnected(1, "lost"))
    partition.core.link_up()
    partition.turns()
    partition.effects.payload_came(GROUP, b"payload")
    partition.turns()
    while partition.link.open:
        assert len(partition.link.open) <= 2
        partition.confirms()
    assert sorted(partition.topics) == sorted(f"t/m{number}" for number in range(8))
    assert partition.core.settled


def test_a_payload_that_is_gone_ends_all_who_waited_and_keeps_the_count() -> None:
    partition = GroupPartition(Limits(window=2))
    for number in range(5):
        partition.arrives(f"m{number}")
    partition.turns()
    partition.effects.payload_came(GROUP, None)
    partition.turns()
    assert {state for state, _ in partition.log.states.values()} == {"rejected"}
    assert len(partition.log.states) == 5
    assert (partition.core.links[""].in_flight, partition.core.settled) == (0, True)


def test_what_expires_while_it_waits_for_its_payload_is_not_sent() -> None:
    partition = GroupPartition(Limits(window=4))
    soon = time.time_ns() // 1_000_000 + 50
    for number in range(6):
        partition.arrives(f"m{number}", expires_at_ms=soon if number % 2 else 0)
    partition.turns()
    time.sleep(0.06)
    partition.effects.payload_came(GROUP, b"payload")
    partition.turns()
    partition.confirms()
    assert partition.topics == ["t/m0", "t/m2", "t/m4"]
    expired = {one for one, (state, _) in partition.log.states.items() if state == "expired"}
    assert expired == {"m1-2", "m3-4", "m5-6"}
    assert partition.log.states["m1-2"] == ("expired", 0)
    assert partition.core.settled


def test_what_was_parked_while_it_waited_is_not_sent_by_the_push_that_waited() -> None:
    partition = GroupPartition(Limits(window=4))
    partition.arrives("m")
    partition.turns()
    now_us = time.time_ns() // 1000
    partition.core.gone("m", now_us, now_us)
    partition.effects.payload_came(GROUP, b"payload")
    assert partition.topics == []
    assert partition.core.links[""].in_flight == 0
