"""The position of a subscription while a chunked message is incomplete (H14)."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.contract import Position
from sources.chunks import ChunkGuard, ChunkPart, part_of
from sources.planning import Ledger, PartitionView

MEGABYTE = 1024 * 1024


class Entries:
    """A partition of one ledger; counts how many entries are asked for."""

    def __init__(self, parts: Sequence[ChunkPart | None], size: int) -> None:
        self.parts = parts
        self.view = PartitionView("p", (Ledger(7, len(parts), size),))
        self.asked = 0

    def ask(self, partition: str, places: Sequence[Position]) -> list[ChunkPart | None]:
        self.asked += len(places)
        return [self.parts[place.entry] for place in places]

    def safe(self, end: int) -> int:
        guard = ChunkGuard("q", self.ask)
        return guard.safe({"p": self.view}, {"p": Position(7, end)})["p"].entry


@st.composite
def interleaved(draw: st.DrawFn) -> list[ChunkPart | None]:
    """Entries of several producers, some of them chunked messages, each producer's in its own order."""
    queues: list[list[ChunkPart | None]] = []
    for producer in range(draw(st.integers(1, 3))):
        queue: list[ChunkPart | None] = []
        for message in range(draw(st.integers(0, 3))):
            total = draw(st.integers(1, 4))
            uuid = f"{producer}-{message}"
            queue += [ChunkPart(uuid, n, total) for n in range(total)] if total > 1 else [None]
        queues.append(queue)
    found = []
    while any(queues):
        found.append(draw(st.sampled_from([queue for queue in queues if queue])).pop(0))
    return found


@given(interleaved(), st.data())
@settings(deadline=None)
def test_h14_no_chunk_of_an_incomplete_message_is_passed(parts: list[ChunkPart | None], data: st.DataObject) -> None:
    # At most 3 x 4 entries lie between: within what is looked at once a chunk was seen.
    parts = [ChunkPart("first", 0, 2), ChunkPart("first", 1, 2), *parts]
    end = data.draw(st.integers(2, len(parts)))
    entries = Entries(parts, 0)
    guard = ChunkGuard("q", entries.ask)
    for count, size in ((2, 50), (end, 100)):  # the snapshots of two triggers, each of all that is there
        view = PartitionView("p", (Ledger(7, count, size * MEGABYTE),))
        safe = guard.safe({"p": view}, {"p": Position(7, count)})["p"].entry
    done = {part.uuid for part in parts[:end] if part is not None and part.number == part.total - 1}
    opened = [n for n, part in enumerate(parts[:end]) if part is not None and part.uuid not in done]
    assert safe == min(opened, default=end)


def test_h14_a_message_of_more_chunks_than_are_looked_at_first_is_found_from_its_first_one() -> None:
    parts: list[ChunkPart | None] = [None, *(ChunkPart("u", n, 400) for n in range(400))]
    assert Entries(parts[:300], 2000 * MEGABYTE).safe(300) == 1
    assert Entries(parts, 2000 * MEGABYTE).safe(401) == 401


def test_h14_nothing_is_asked_where_no_first_chunk_can_be() -> None:
    entries = Entries([None] * 50, 5000)
    assert entries.safe(50) == 50
    assert entries.asked == 0


def test_h14_only_a_position_that_releases_a_ledger_is_checked() -> None:
    def asked(end: Position, held: Position) -> bool:
        parts = [None] * 5000
        entries = Entries(parts, 0)
        view = PartitionView("p", (Ledger(3, 10, 20 * MEGABYTE), Ledger(7, 5000, 20 * MEGABYTE)), {"q": held})
        ChunkGuard("q", entries.ask).safe({"p": view}, {"p": end})
        return entries.asked > 0

    assert asked(Position(3, 10), Position(3, 2)), "the first ledger is acknowledged to its end"
    assert not asked(Position(3, 9), Position(3, 2))
    assert asked(Position(7, 500), Position(3, 9)), "the message may begin in the ledger that goes"
    assert not asked(Position(7, 500), Position(7, 20)), "that one is gone already"
    assert not asked(Position(7, 4000), Position(3, 9)), "no message reaches as far back"
    assert asked(Position(7, 5000), Position(7, 20)), "the open ledger may be closed as it is"


def test_h14_while_a_message_is_open_its_partition_is_looked_at_again() -> None:
    entries = Entries([ChunkPart("u", 0, 2)], 5 * MEGABYTE)
    guard = ChunkGuard("q", entries.ask)
    assert guard.safe({"p": entries.view}, {"p": Position(7, 1)})["p"] == (7, 0)
    entries.parts = [ChunkPart("u", 0, 2), ChunkPart("u", 1, 2)]
    after = PartitionView("p", (Ledger(7, 2, 5 * MEGABYTE + 10),))  # the last chunk may be small
    assert guard.safe({"p": after}, {"p": Position(7, 2)})["p"] == (7, 2)


def test_the_admins_headers_name_the_part() -> None:
    headers = {"x-pulsar-chunk-id": "1", "x-pulsar-num-chunks-from-msg": "3", "x-pulsar-uuid": "u"}
    assert part_of(headers) == ChunkPart("u", 1, 3)
    assert part_of({"x-pulsar-num-batch-message": "3"}) is None
