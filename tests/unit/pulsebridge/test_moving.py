"""The move of commands to other topics, on logs in memory: what these have, and after every interruption."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pulsar
import pytest

from bridge.contract import (
    C_ID,
    C_MOVED_FROM,
    C_REF,
    COMMANDS_TOPIC,
    CURSORS_TOPIC,
    GROUP_COMMANDS_TOPIC,
    GROUP_MEMBERS_TOPIC,
    GROUP_ROSTER_TOPIC,
    PARKED_TOPIC,
    partition_name,
)
from bridge.contract.commands import Command, CommandPosition, GroupRef, encode_command
from bridge.contract.cursors import OWNER_KEY, TERM_KEY, OwnerRecord, Term, term_record
from bridge.contract.former_positions import TRIMMED, FormerPartition
from bridge.contract.groups import MEMBER, GroupCommand, encode_group_command, member_key
from bridge.contract.partitioning import partition_of
from bridge.contract.segments import ParkedId, encode_segment, read_segment, segment_key
from bridge.errors import ConfigError, TerminalError
from bridge.inspect.devices.acknowledged import Acknowledged
from bridge.inspect.devices.reading import PushTopics
from bridge.pulsar.messages import stored_message
from bridge.push.cursor import Cursor
from bridge.push.groups.roster import OWNER, Progress, Roster
from bridge.settings.pulsar import PulsarSettings
from pulsebridge import moving
from pulsebridge.moving import MovedPartition, move_commands

AT = CommandPosition


class Died(BaseException):
    """The process dies at this write."""


class Id:
    def __init__(self, position: CommandPosition) -> None:
        self.ledger_id, self.entry_id, self.batch_index = (lambda number=number: number for number in position)


class Message:
    def __init__(
        self, position: CommandPosition, key: str, payload: bytes, properties: dict[str, str], by: str
    ) -> None:
        self.message_id = lambda: Id(position)
        self.partition_key = lambda: key
        self.data = lambda: payload
        self.properties = lambda: properties
        self.producer_name = lambda: by
        self.publish_timestamp = lambda: 1_700_000_000_000


class Topics:
    """The topics of push in a cluster; it is its own client."""

    commands = "persistent://p/n/commands"

    def __init__(self, ledger: int, acknowledged: str = "", partitions: int = 1, generation: int = 0) -> None:
        self.partitions = partitions
        # Topics of one cluster have the groups in common.
        url = "pulsar://one" if generation else f"pulsar://{ledger}"
        self.settings = SimpleNamespace(service_url=url, command_generation=generation)
        self.terminated = False
        self.logs: dict[str, list[Message]] = defaultdict(list)
        self.client = self
        self.left = 10_000
        """Writes until the process dies."""
        self.sought: dict[str, tuple[int, int]] = {}
        self._ledger, self._writers = ledger, 0
        self._acknowledged = acknowledged

    def full_name(self, local: str) -> str:
        return f"persistent://p/n/{local}"

    def count(self, _local: str) -> int:
        return 1

    def acknowledged(self, _partition: int) -> Acknowledged | None:
        return Acknowledged({"markDeletePosition": self._acknowledged}) if self._acknowledged else None

    def of(self, local: str, partition: int = 0) -> list[Message]:
        return self.logs[partition_name(self.full_name(local), partition)]

    def scan(self, local: str, partition: int, **_: object) -> Iterator[Message]:
        return iter([*self.of(local, partition)])

    def keyed(self, local: str, partition: int) -> Iterator[tuple[str, bytes]]:
        return iter([(one.partition_key(), one.data()) for one in self.of(local, partition)])

    def write(
        self, local: str, key: str, payload: bytes, properties: dict[str, str] | None = None, partition: int = 0
    ) -> None:
        self.producer(partition_name(self.full_name(local), partition), "o").send_async(
            payload, lambda *_: None, properties, key
        )

    def producer(self, topic: str, by: str = "", **_: object) -> Any:
        self._writers += 1
        return Producer(self, topic, by or f"writer {self._writers}")

    def consumer(self, topic: str, _subscription: str, **_: object) -> Any:
        def seek(to: pulsar.MessageId) -> None:
            self.sought[topic] = to.ledger_id(), to.entry_id()

        return SimpleNamespace(seek=seek, close=lambda: None)

    def close(self) -> None:
        pass

    def append(self, topic: str, *message: Any) -> CommandPosition:
        self.left -= 1
        if self.left < 0:
            raise Died
        position = AT(self._ledger, len(self.logs[topic]), -1)
        self.logs[topic].append(Message(position, *message))
        return position


class Producer:
    def __init__(self, topics: Topics, topic: str, by: str) -> None:
        self._topics, self._topic, self._by = topics, topic, by

    def send_async(
        self,
        payload: bytes,
        callback: Callable[..., None],
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
    ) -> None:
        position = self._topics.append(self._topic, partition_key or "", payload, dict(properties or {}), self._by)
        callback(pulsar.Result.Ok, Id(position))

    def close(self) -> None:
        pass


class Reader:
    def __init__(self, client: Topics, topic: str, _partition: int) -> None:
        self._log = client.logs[topic]

    def read(self, position: CommandPosition) -> Any:
        return stored_message(cast(Any, self._log[position.entry]))

    def close(self) -> None:
        pass


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> Topics:
    """Device a has one of its commands; b gets one again and has another parked; one of z was relocated."""
    monkeypatch.setattr(moving, "PositionReader", Reader)
    topics = Topics(7, "7:3")
    for device, number in (("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2)):
        one = Command(f"{device}-{number}", device, "t", b"x")
        topics.write(COMMANDS_TOPIC, device, b"x", encode_command(one))
    group = GroupCommand("g1", "g", "t/{device}", b"all", expires_at_ms=2**41)
    topics.write(GROUP_COMMANDS_TOPIC, "g", b"all", encode_group_command(group))
    entry = Command("e", "a", "t", b"", ref=GroupRef("g", "g1", AT(7, 0, -1), 3))
    topics.write(COMMANDS_TOPIC, "a", b"", encode_command(entry))
    topics.write(PARKED_TOPIC, "z", b"x", encode_command(Command("z-0", "z", "t", b"x")))
    topics.write(GROUP_MEMBERS_TOPIC, member_key("g", "a"), MEMBER)
    roster = Roster()
    for change in (OWNER, roster.opened(AT(7, 0, -1), group), roster.known("g"), roster.joined("g", "a")):
        topics.write(GROUP_ROSTER_TOPIC, *change.encode("o"))
    topics.write(GROUP_ROSTER_TOPIC, *roster.moved(Progress(AT(7, 0, -1))).encode("o"))
    a, b = Cursor(256), Cursor(256)
    a.settle(AT(7, 0, -1), "a-0", delivered=True)
    b.settle(AT(7, 1, -1), "b-0", delivered=True)
    b.resend_parked([ParkedId(AT(7, 1, -1), 0, True, True)])
    topics.write(CURSORS_TOPIC, TERM_KEY, term_record(Term(b"s" * 32)))
    for device, cursor in (("a", a), ("b", b)):
        for record in cursor.records(device):
            topics.write(CURSORS_TOPIC, *record)
    topics.write(CURSORS_TOPIC, segment_key("b", "o", 0), encode_segment([7, 3, -1, 0, 0], [], 5))
    topics.write(CURSORS_TOPIC, segment_key("z", "o", 0), encode_segment([5, 9, -1, 0, 0], [7, 0, -1], 5))
    topics.write(CURSORS_TOPIC, OWNER_KEY, OwnerRecord("o", 2, clean=True).encode())
    return topics


def move(old: Topics, new: Topics) -> list[MovedPartition]:
    def terminate() -> None:
        old.terminated = True

    return move_commands(cast(PushTopics, old), cast(PushTopics, new), terminate)


def state(new: Topics) -> object:
    """Return what the next owner finds."""
    records = moving._Records(cast(PushTopics, new), 0)
    found = records.cursors
    assert records.readable
    assert found.term.former
    roster = Roster()
    for key, payload in new.keyed(GROUP_ROSTER_TOPIC, 0):
        roster.take(key, payload)
    return (
        [(one.message_id().entry_id(), one.properties()) for one in new.of(COMMANDS_TOPIC)],
        {device: cursor.encode() for device, cursor in found.by_device.items()},
        found.parked,
        FormerPartition.fields(found.term.former),
        found.served,
        roster,
        new.sought,
    )


def test_the_next_owner_finds_everything_at_the_positions_of_the_copies(old: Topics) -> None:
    new = Topics(2)
    assert move(old, new) == [MovedPartition(7, 2, 0)]
    assert [one.properties()[C_ID] for one in new.of(COMMANDS_TOPIC)] == ["z-0", "a-0", "b-0", "a-1", "b-1", "a-2", "e"]
    assert [one.properties()[C_MOVED_FROM] for one in new.of(COMMANDS_TOPIC)][:2] == ["0.0.5.9.-1", "0.0.7.0.-1"]
    assert new.of(COMMANDS_TOPIC)[-1].properties()[C_REF] == "2:0:-1"
    found = moving._Records(cast(PushTopics, new), 0).cursors
    a, b = found.by_device["a"], found.by_device["b"]
    assert (a.position, b.position) == (AT(2, 1, -1), AT(2, 2, -1))
    assert a.knows("a-0")
    assert (b.done, b.resend) == (AT(2, 1, -1), [ParkedId(AT(2, 2, -1), 0, True, True)])
    parked = {device: read_segment(next(iter(some.values()))).ids for device, some in found.parked.items()}
    assert parked == {"b": [ParkedId(AT(2, 4, -1))], "z": [ParkedId(AT(2, 0, -1))]}
    assert found.served == OwnerRecord("moved", 0, clean=True)
    assert list(new.sought.values()) == [(2, 4)]
    assert old.terminated
    (former,) = found.term.former
    assert (former.secret, former.here(AT(7, 2, -1))) == (b"s" * 32, AT(2, 3, -1))
    assert former.here(AT(6, 0, -1)) == TRIMMED, "what lay behind it is not in the log any more"


def test_after_an_interruption_at_any_write_a_second_run_gives_the_same(old: Topics) -> None:
    whole = Topics(2)
    move(old, whole)
    writes = 10_000 - whole.left
    for left in range(writes):
        new = Topics(2)
        new.left = left
        with suppress(Died):
            move(old, new)
        new.left = 10_000
        move(old, new)
        assert state(new) == state(whole)
        assert len(new.of(GROUP_COMMANDS_TOPIC)) == 1
        left_over = new.left
        assert move(old, new) == []
        assert new.left == left_over, "what is done is left as it is"


def test_a_generation_that_is_not_greater_is_refused_because_devices_compare_positions() -> None:
    other = PulsarSettings(service_url="pulsar://other:6650", admin_url="http://other:8080", command_generation=1)
    for former in (1, 2):
        with pytest.raises(
            ConfigError, match=rf"is 1 in the new settings and {former} .* set it to {former + 1} or more"
        ):
            moving.move(PulsarSettings(command_generation=former), other)


def test_a_new_cluster_with_an_owner_or_commands_of_its_own_is_refused(old: Topics) -> None:
    new = Topics(2)
    new.write(COMMANDS_TOPIC, "a", b"x", encode_command(Command("own", "a", "t", b"x")))
    with pytest.raises(TerminalError, match="not a copy"):
        move(old, new)
    assert not old.terminated
    new = Topics(2)
    new.write(CURSORS_TOPIC, OWNER_KEY, OwnerRecord("push", 1).encode())
    with pytest.raises(TerminalError, match="push ran with the new settings"):
        move(old, new)


def test_h28_with_more_partitions_each_device_has_its_commands_in_order_in_its_new_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of each device the first two commands are acknowledged, and it has had three."""
    monkeypatch.setattr(moving, "PositionReader", Reader)
    names = [f"d{number}" for number in range(12)]

    def filled() -> Topics:
        old = Topics(7, "7:-1", partitions=2)
        for partition in range(2):
            of = [name for name in names if partition_of(name, 2) == partition]
            for number in range(5):
                for name in of:
                    one = Command(f"{name}-{number}", name, "t", b"x")
                    old.write(COMMANDS_TOPIC, name, b"x", encode_command(one), partition)
            for at, name in enumerate(of):
                cursor = Cursor(256)
                cursor.settle(AT(7, 2 * len(of) + at, -1), f"{name}-2", delivered=True)
                for record in cursor.records(name):
                    old.write(CURSORS_TOPIC, *record, None, partition)
            old.write(CURSORS_TOPIC, TERM_KEY, term_record(Term(bytes([partition]) * 32)), None, partition)
            old.write(CURSORS_TOPIC, OWNER_KEY, OwnerRecord("o", 2, clean=True).encode(), None, partition)
        ends = [2 * sum(partition_of(name, 2) == partition for name in names) - 1 for partition in range(2)]
        old.acknowledged = lambda partition: Acknowledged({"markDeletePosition": f"7:{ends[partition]}"})  # type: ignore[method-assign]
        old.settings.service_url = "pulsar://one"
        return old

    def check(new: Topics) -> None:
        for partition in range(3):
            log = [(one.partition_key(), one.properties()[C_ID]) for one in new.of(COMMANDS_TOPIC, partition)]
            of = [name for name in names if partition_of(name, 3) == partition]
            assert {name for name, _ in log} == set(of)
            found = moving._Records(cast(PushTopics, new), partition).cursors
            for name in of:
                assert [one for device, one in log if device == name] == [f"{name}-{number}" for number in range(5)]
                done = log[: found.by_device[name].position.entry + 1]
                assert [one for device, one in done if device == name][-1] == f"{name}-2"
            topic = partition_name(new.full_name(COMMANDS_TOPIC), partition)
            assert new.sought[topic] == (9, 2 * len(of) - 1), "all that push has acknowledged, and no more"
            assert [(one.partition, one.secret[0]) for one in found.term.former] == [(0, 0), (1, 1)]
            assert found.served == OwnerRecord("moved", 0, clean=True)
        assert not new.of(GROUP_ROSTER_TOPIC), "the groups are where they were"

    whole = Topics(9, partitions=3, generation=1)
    assert sum(one.copied for one in move(filled(), whole)) == 5 * len(names)
    check(whole)
    for left in range(10_000 - whole.left):
        new, old = Topics(9, partitions=3, generation=1), filled()
        new.left = left
        with suppress(Died):
            move(old, new)
        new.left = 10_000
        move(old, new)
        check(new)
