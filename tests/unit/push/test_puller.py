"""Parked commands are read again in the order of the log, and held in bounded memory, however large they are."""

from __future__ import annotations

import queue
import threading
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.contract.commands import CommandPosition
from bridge.pulsar import position_reader
from bridge.pulsar.client import MessageId, PulsarClient
from bridge.push.actions import Pull
from bridge.push.puller import Pulled, Puller, wanted_by
from tests.support.clock import set_clock
from tests.support.stored_message import StoredMessage
from tests.support.waiting import patient

SIZE = 10


class Topic:
    """A client whose readers give an entry after the other from where they begin, once it lets them."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.lets = threading.Event()
        self.lets.set()

    def reader(self, _topic: str, start: MessageId, **_more: object) -> Entries:
        assert self.lets.wait(patient(20))
        self.begun.append(start.entry_id())
        return Entries(start.entry_id())


class Entries:
    """A reader."""

    def __init__(self, first: int) -> None:
        self._at = first - 1

    def read_next(self, _wait_ms: int) -> Any:
        self._at += 1
        return StoredMessage(self._at, "d", b"x" * SIZE)

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a read takes decides whether a new reader is cheaper, and says here how busy the machine is."""
    set_clock(monkeypatch, position_reader)


@pytest.fixture
def posted() -> queue.SimpleQueue[Pulled]:
    return queue.SimpleQueue()


def order(device: str, *entries: int, turn: int = 1, probing: bool = False) -> Pull:
    places = tuple(CommandPosition(3, entry, -1) for entry in entries)
    return Pull(device, turn, places, (None,) * len(entries), probing)


def reads_from(topic: Topic, posted: queue.SimpleQueue[Any], *, max_bytes: int = 2 * SIZE + 1) -> Puller:
    client = cast(PulsarClient, topic)
    return Puller(client, "commands", "moved", 0, posted.put, posted.put, max_bytes=max_bytes)


def puller(posted: queue.SimpleQueue[Any]) -> Puller:
    made = reads_from(Topic(), posted)
    made.begin(order("d", *range(8)))
    return made


def some(posted: queue.SimpleQueue[Pulled], count: int) -> list[int]:
    found = [posted.get(timeout=patient(20)).position.entry for _ in range(count)]
    with pytest.raises(queue.Empty):
        posted.get(timeout=0.2)
    return found


def read_together(orders: list[Pull]) -> tuple[list[Pulled], Topic]:
    """Return what is posted for orders that wait while the first of them is read, and where readers began."""
    posted: queue.SimpleQueue[Pulled] = queue.SimpleQueue()
    topic = Topic()
    topic.lets.clear()
    one = reads_from(topic, posted, max_bytes=1000)
    for each in orders:
        one.begin(each)
    topic.lets.set()
    found = [posted.get(timeout=patient(20)) for each in orders for _ in each.positions]
    one.close()
    return found, topic


def test_it_reads_on_when_its_messages_are_released(posted: queue.SimpleQueue[Pulled]) -> None:
    one = puller(posted)
    assert some(posted, 3) == [0, 1, 2]
    one.release(SIZE)
    assert some(posted, 1) == [3]
    for _ in range(4):
        one.release(SIZE)
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


def test_what_many_devices_wait_for_is_read_in_the_order_of_the_log() -> None:
    orders = [order("first", 10), order("c", 70, 72), order("a", 20, 71), order("b", 40), order("a", 73)]
    found, topic = read_together(orders)
    assert [(pulled.pull.device, pulled.position.entry) for pulled in found] == [
        ("first", 10), ("a", 20), ("b", 40), ("c", 70), ("a", 71), ("c", 72), ("a", 73),
    ]  # fmt: skip
    assert topic.begun == [10], "one reader for all of them"


def test_who_is_only_tried_costs_those_that_are_back_no_new_reader(
    posted: queue.SimpleQueue[Pulled],
) -> None:
    topic = Topic()
    one = reads_from(topic, posted, max_bytes=1000)
    found = []
    for turn in range(5):
        one.begin(order("back", 10 + turn))
        one.begin(order(f"tried-{turn}", 50_000 + turn, probing=True))
        found += [posted.get(timeout=patient(20)).position.entry for _ in range(2)]
    one.close()
    assert sorted(found) == [*range(10, 15), *range(50_000, 50_005)]
    assert sorted(topic.begun) == [10, 50_000], "a reader for each of the two"


def test_a_device_with_a_sign_of_life_during_its_probe_gets_its_commands_in_order() -> None:
    orders = [order("first", 10), order("a", 20, probing=True), order("b", 15, probing=True), order("a", 21)]
    found, _ = read_together(orders)
    assert [p.position.entry for p in found if p.pull.device == "a"] == [20, 21]


TRIED = st.sampled_from([(True,), (True, False), (True, False, False), (False, False)])
"""The orders of one device since it woke, and whether it had given no sign of life at each."""


@given(st.lists(TRIED, min_size=1, max_size=3), st.permutations(range(9)), st.data())
def test_whatever_is_ordered_together_comes_to_each_device_in_order(
    devices: list[tuple[bool, ...]], places: list[int], data: st.DataObject
) -> None:
    waiting = []
    for number, orders in enumerate(devices):
        own = sorted(100 + place for place in places[3 * number : 3 * number + 3])
        waiting.append([order(f"d{number}", at, probing=u) for at, u in zip(own, orders, strict=False)])
    expected = {orders[0].device: [each.positions[0] for each in orders] for orders in waiting}
    ordered = [order("first", 10)]
    while left := [orders for orders in waiting if orders]:
        ordered.append(data.draw(st.sampled_from(left), label="next").pop(0))
    found: dict[str, list[CommandPosition]] = {}
    for pulled in read_together(ordered)[0]:
        found.setdefault(pulled.pull.device, []).append(pulled.position)
    assert found.pop("first") == [CommandPosition(3, 10, -1)]
    assert found == expected


def test_a_device_that_woke_twice_gets_both_answers_of_one_read() -> None:
    orders = [order("first", 10), order("a", 20, 21, turn=1), order("a", 20, 21, turn=2)]
    found, topic = read_together(orders)
    assert [(pulled.pull.epoch, pulled.position.entry) for pulled in found[1:]] == [
        (1, 20),
        (2, 20),
        (1, 21),
        (2, 21),
    ]
    assert topic.begun == [10]


@given(st.lists(st.lists(st.integers(0, 9), unique=True, max_size=5), max_size=6))
def test_each_order_is_answered_whole_and_in_the_order_of_the_log(entries: list[list[int]]) -> None:
    orders = [order(f"d{n}", *sorted(each)) for n, each in enumerate(entries)]
    answered: dict[str, list[CommandPosition]] = {each.device: [] for each in orders}
    read = wanted_by(orders)
    for (position, _), several in read:
        for each in several:
            answered[each.device].append(position)
    assert answered == {each.device: list(each.positions) for each in orders}
    assert len({where for where, _ in read}) == len(read), "none is read twice"
