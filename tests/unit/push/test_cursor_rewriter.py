"""Old records are rewritten slowly: no more than Pulsar accepts, and no device waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from bridge.contract.commands import CommandPosition
from bridge.contract.cursors import ids_key
from bridge.contract.segments import ParkedId, segment_key
from bridge.push.actions import StoreSegment
from bridge.push.cursor import Cursor
from bridge.push.cursor_log import CursorLog, CursorRewriter, CursorsAged
from bridge.push.partition import Partition
from bridge.push.segments import Parked
from tests.support.push_limits import Limits

NOW_US = 10**15


class Log:
    """Takes records, as the queue of a producer does; Pulsar answers when the test says so."""

    def __init__(self) -> None:
        self.records: list[tuple[str, bytes]] = []
        self.unanswered = 0

    def write_record(self, key: str, payload: bytes, _token: object) -> None:
        self.records.append((key, payload))
        self.unanswered += 1

    def write_cursor(self, records: Sequence[tuple[str, bytes]], token: object) -> None:
        for key, payload in records:
            self.write_record(key, payload, token)


class World:
    """A partition whose devices each have a cursor with 256 ids, and so many parked commands."""

    def __init__(self, devices: int, parked: int = 0) -> None:
        self.log = Log()
        self.now = 0.0
        names = [f"d{number}" for number in range(devices)]
        segments = {name: self._segments(name, parked) for name in names} if parked else {}
        limits = Limits(parked_max=10**9)
        self.core = Partition(
            0,
            limits.nested(),
            {name: self._cursor(name) for name in names},
            None,
            segments,
            owner="A",
            now_us=NOW_US,
        )
        self.core.take(NOW_US)
        self.rewriting = CursorRewriter(cast(CursorLog, self.log))
        self.rewriting.begin(CursorsAged(), self.core)

    @staticmethod
    def _cursor(name: str) -> Cursor:
        cursor = Cursor(256)
        for number in range(256):
            cursor.settle(CommandPosition(1, number, -1), f"{name}-{number}", delivered=True)
        return cursor

    @staticmethod
    def _segments(name: str, parked: int) -> dict[str, bytes]:
        found = Parked()
        for number in range(parked):
            found.append(ParkedId(CommandPosition(2, number, -1)), segment_key(name, "Z", number), 1)
        return dict(found.stored())

    def turns(self, seconds: float, *, answered: bool = True) -> None:
        """Turn by turn, as the session does."""
        for _ in range(round(seconds * 20)):
            self.now += 0.05
            for action in self.core.take(NOW_US):
                if isinstance(action, StoreSegment):
                    self.log.write_record(action.key, action.payload, action)
            self.rewriting.turn(self.core, self.now)
            if answered:
                self.log.unanswered = 0


def test_old_records_wait_while_pulsar_does_not_answer() -> None:
    world = World(2000)
    world.turns(60, answered=False)
    waiting = world.log.unanswered
    assert waiting < 400
    world.turns(60, answered=False)
    assert world.log.unanswered == waiting
    world.turns(60)
    assert {f"d{number}" for number in range(2000)} < {key for key, _ in world.log.records}


@pytest.mark.parametrize(("devices", "parked"), [(1000, 0), (100, 1000), (12, 10_000)])
def test_old_records_are_written_at_a_megabyte_a_second_however_much_a_device_has(devices: int, parked: int) -> None:
    world = World(devices, parked)
    segments = devices * -(-parked // 256)
    for second in range(1, 31):
        world.turns(1)
        written = sum(len(key) + len(payload) for key, payload in world.log.records)
        assert written < second * 1_000_000 + 500_000
    keys = [key for key, _ in world.log.records]
    everything = 2 * devices + segments + 1
    assert len(keys) == len(set(keys)) == everything, "each once: cursor, ids and segments, and the term"


def test_who_drains_begins_nothing_that_may_wait() -> None:
    world = World(1000)
    world.turns(1)
    world.rewriting.drain()
    before = len(world.log.records)
    world.turns(10)
    assert len(world.log.records) == before > 0


def test_ids_of_unknown_devices_are_removed_unless_the_device_is_known_again() -> None:
    world = World(3)
    world.rewriting.drain()
    world.log.records.clear()  # of our term, which is not to be the oldest one
    gone = [f"gone{number}" for number in range(500)]
    world.rewriting.remove_ids(map(ids_key, [*gone, "d1"]))
    world.turns(60, answered=False)
    assert 0 < len(world.log.records) < 400
    world.turns(60)
    assert world.log.records == [(ids_key(device), b"") for device in gone]
