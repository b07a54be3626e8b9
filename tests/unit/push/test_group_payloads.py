"""The cache of group payloads, and the pushes that wait for one."""

from __future__ import annotations

from collections import Counter, defaultdict

from hypothesis import given
from hypothesis import strategies as st

from bridge.commands import Command, CommandPosition, GroupRef
from bridge.push.actions import Push
from bridge.push.groups.cache import PayloadCache
from bridge.push.groups.indexed import Indexed, Lost


def place(number: int) -> CommandPosition:
    return CommandPosition(3, number, -1)


@given(
    st.lists(st.tuples(st.sampled_from(["ask", "fetched"]), st.integers(0, 5)), max_size=60),
    st.integers(0, 40),
)
def test_a_payload_is_read_once_for_all_who_ask_and_the_cache_keeps_its_bounds(
    played: list[tuple[str, int]], limit: int
) -> None:
    reading: list[CommandPosition] = []
    told: list[tuple[CommandPosition, bytes | None]] = []
    counted: Counter[str] = Counter()
    cache = PayloadCache(
        limit, reading.append, lambda: counted.update(["hit"]), lambda: counted.update(["missed"])
    )
    asked = answered = reads = 0
    for event, number in played:
        if event == "ask":
            asked += 1
            before = len(reading)
            found = cache.ask(place(number), lambda position, payload: told.append((position, payload)))
            reads += len(reading) - before
            assert reading.count(place(number)) <= 1, "concurrent misses wait for one read"
            if found is not None:
                answered += 1
                assert found == bytes([number]) * (number * 4)
        elif reading:
            wanted = reading.pop(number % len(reading))
            cache.fetched(wanted, bytes([wanted.entry]) * (wanted.entry * 4) if wanted.entry != 1 else None)
        assert 0 <= cache.size <= limit
    while reading:
        cache.fetched(reading.pop(), None)
    assert answered + len(told) == asked, "everybody is answered once"
    assert (counted["missed"], counted["hit"]) == (reads, asked - reads)


def test_what_was_used_longest_ago_goes_first() -> None:
    read: list[CommandPosition] = []

    def fetch(position: CommandPosition) -> None:
        read.append(position)
        cache.fetched(position, b"x")

    cache = PayloadCache(2, fetch)
    for number in (1, 2, 1, 3, 1, 2):
        cache.ask(place(number), lambda _position, _payload: None)
    assert read == [place(n) for n in (1, 2, 3, 2)], "2 made room for 3"
    assert cache.size == 2


PUSHES = st.lists(st.tuples(st.integers(0, 2), st.one_of(st.none(), st.integers(0, 3))), max_size=30)


@given(PUSHES, st.data())
def test_whatever_waits_for_its_payload_a_devices_order_is_kept(
    wanted: list[tuple[int, int | None]], data: st.DataObject
) -> None:
    asked: list[CommandPosition] = []
    there: dict[CommandPosition, bytes] = {}

    def ask(position: CommandPosition) -> bytes | None:
        if position in there:
            return there[position]
        asked.append(position)
        return None

    indexed = Indexed(ask)
    out: dict[str, list[int]] = defaultdict(list)
    put: dict[str, list[int]] = defaultdict(list)

    def take(found: Push | Lost) -> None:
        if isinstance(found, Push):
            out[found.command.device].append(found.number)
            assert found.command.payload
        else:
            device = next(device for device, numbers in put.items() if found.number in numbers)
            out[device].append(found.number)

    def answer() -> None:
        position = asked[data.draw(st.integers(0, len(asked) - 1))]
        asked[:] = [one for one in asked if one != position]
        payload = None if position.entry == 2 else b"shared"
        if payload is not None:
            there[position] = payload
        for found in indexed.came(position, payload):
            take(found)

    for number, (device, ref) in enumerate(wanted):
        name = f"d{device}"
        put[name].append(number)
        stands = None if ref is None else GroupRef("g", f"c{ref}", place(ref), 6)
        command = Command(f"c-{number}", name, "t", b"" if ref is not None else b"own", ref=stands)
        for one in indexed.add(Push(number, place(100 + number), command, False)):
            take(one)
        if asked and data.draw(st.booleans()):
            answer()
    while asked:
        answer()
    assert out == put


def test_what_waited_for_a_lost_connection_is_not_pushed() -> None:
    indexed = Indexed(lambda _position: None)
    command = Command("c", "d", "t", b"", ref=GroupRef("g", "c", place(1), 6))
    assert not list(indexed.add(Push(1, place(9), command, False)))
    indexed.forget()
    assert not list(indexed.came(place(1), b"late"))
