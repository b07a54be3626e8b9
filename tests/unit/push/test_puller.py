"""Parked commands that are read again are held in bounded memory, however large they are."""

from __future__ import annotations

import queue
from typing import Any, cast

import pytest

from bridge.commands import CommandPosition
from bridge.pulsar_client import MessageId, PulsarClient
from bridge.push.actions import Pull
from bridge.push.pulling import Pulled, Puller
from tests.support.stored_message import StoredMessage
from tests.support.waiting import patient

SIZE = 10


class Topic:
    """A client whose readers give an entry after the other from where they begin."""

    def reader(self, _topic: str, start: MessageId, **_more: object) -> Topic:
        self._at = start.entry_id() - 1
        return self

    def read_next(self, _wait_ms: int) -> Any:
        self._at += 1
        return StoredMessage(self._at, "d", b"x" * SIZE)

    def close(self) -> None:
        pass


@pytest.fixture
def posted() -> queue.SimpleQueue[Pulled]:
    return queue.SimpleQueue()


def puller(posted: queue.SimpleQueue[Any]) -> Puller:
    made = Puller(
        cast(PulsarClient, Topic()), "commands", "moved", 0, posted.put, posted.put, held_bytes=2 * SIZE + 1
    )
    made.pull(Pull("d", 1, tuple(CommandPosition(3, n, -1) for n in range(8)), (None,) * 8))
    return made


def some(posted: queue.SimpleQueue[Pulled], count: int) -> list[int]:
    found = [posted.get(timeout=patient(20)).position.entry for _ in range(count)]
    with pytest.raises(queue.Empty):
        posted.get(timeout=0.2)
    return found


def test_it_reads_on_when_what_it_gave_is_not_held_any_more(posted: queue.SimpleQueue[Pulled]) -> None:
    one = puller(posted)
    assert some(posted, 3) == [0, 1, 2]
    one.gave(SIZE)
    assert some(posted, 1) == [3]
    for _ in range(4):
        one.gave(SIZE)
    assert some(posted, 4) == [4, 5, 6, 7]
    one.close()


def test_nothing_waits_for_room_at_a_drain_or_at_the_end(posted: queue.SimpleQueue[Pulled]) -> None:
    one = puller(posted)
    some(posted, 3)
    one.drain()
    assert some(posted, 5) == [3, 4, 5, 6, 7]
    one.close()
    other = puller(posted)
    some(posted, 3)
    other.close()
    assert posted.empty()
