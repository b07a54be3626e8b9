"""What the hands of a partition do with commands that Pulsar gives more than once: each is let go of once."""

from __future__ import annotations

import time
from collections import Counter
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.contract.commands import Command, CommandPosition, encode_command
from bridge.contract.tagged_positions import PositionTags
from bridge.mqtt.client import Link
from bridge.pulsar.client import MessageId
from bridge.pulsar.messages import StoredMessage
from bridge.pulsar.read_budget import ReadBudget
from bridge.push.actions import Action, StoreCursor, StoreReceipt
from bridge.push.effects import Effects
from bridge.push.metrics import PushMetrics
from bridge.push.partition import Partition
from bridge.push.partition_log import PartitionLog
from bridge.settings import Settings
from tests.support.push_limits import Limits

COMMANDS = 4
METRICS = PushMetrics()


def given_again(number: int) -> StoredMessage:
    """One time that Pulsar gives a command: its position is that of the command, its message id is its own."""
    one = Command(f"c-{number}", f"d{number % 2}", "commands/d", b"x" * (number + 1), expires_at_ms=1)
    position = CommandPosition(1, number, -1)
    return StoredMessage(position, cast(MessageId, object()), one.device, one.payload, encode_command(one), 0)


class Log:
    """The Pulsar of one partition: stores each write, and confirms it in the next turn."""

    def __init__(self) -> None:
        self.acknowledged: list[MessageId] = []
        self.written: list[Action] = []

    @property
    def cursors(self) -> Log:
        """As of a partition: its cursors are written here as well."""
        return self

    def acknowledge(self, message: MessageId) -> None:
        self.acknowledged.append(message)

    def write_cursor(self, _records: object, token: Action) -> None:
        self.written.append(token)

    def write_receipt(self, _key: str, _payload: bytes, token: Action) -> None:
        self.written.append(token)


class Room:
    """Counts the releases that the budget receives."""

    def __init__(self) -> None:
        self.messages = self.bytes = 0

    def release(self, size: int) -> None:
        self.messages += 1
        self.bytes += size


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(st.integers(0, COMMANDS - 1), max_size=6), min_size=1, max_size=8))
def test_what_comes_again_before_its_acknowledgement_is_made_is_acknowledged_once_by_its_newest_id(
    turns: list[list[int]],
) -> None:
    """Between two turns a reconnect may bring a command twice that is settled: here they all have expired."""
    core = Partition(0, Limits(retry_min_us=1, retry_max_us=1).nested(), {}, None)
    core.link_up()
    log, room = Log(), Room()
    effects = Effects(
        Settings(),
        core,
        {"": cast(Link, None)},
        cast(PartitionLog, log),
        cast(ReadBudget, room),
        METRICS,
        lambda _at: None,
        PositionTags(b"secret", 0),
    )
    given_to_us: list[StoredMessage] = []
    newest: dict[int, StoredMessage] = {}
    held: Counter[int] = Counter()
    for turn in [*turns, [], [], [], []]:
        for number in turn:
            message = newest[number] = given_again(number)
            given_to_us.append(message)
            held[number] += 1
            effects.arrived(message)
        written, log.written = log.written, []
        for token in written:
            assert isinstance(token, (StoreCursor, StoreReceipt))
            effects.stored(token)
        before = len(log.acknowledged)
        for action in core.take(time.time_ns() // 1000):
            effects.begin(action)
        for message_id in log.acknowledged[before:]:
            numbers = [number for number, one in newest.items() if one.message_id is message_id]
            assert len(numbers) == 1, "the newest id alone counts a batch"
            assert held.pop(numbers[0]), "let go of once for all the times that it was given"
    assert not held
    assert room.messages == len(given_to_us)
    assert room.bytes == sum(len(message.payload) for message in given_to_us)
