"""What a push that lost its connections takes for its own (H23): nothing that the MQTT broker has not answered for."""

from __future__ import annotations

from typing import Any, cast

import pytest

from bridge.contract.cursors import OwnerRecord
from bridge.errors import FencedError
from bridge.pulsar.client import MessageId, message_id
from bridge.push.ownership import Checked, Ownership, Proof
from tests.support.waiting import poll_for


def record(entry: int) -> MessageId:
    return message_id(0, 1, entry, -1)


class World:
    """The cursors partition, the link and its keep-alive, as the ownership sees them."""

    last_stored: MessageId | None = None
    answered = 0  # pings on this connection
    pings = 0

    def __init__(self) -> None:
        self.posted: list[object] = []
        self.ownership = Ownership(cast(Any, self), self.posted.append)
        self.written: list[Proof] = []
        self.read: list[tuple[MessageId, OwnerRecord]] = []
        self.replaced = False

    def write_record(self, _key: str, _payload: bytes, proof: Proof) -> None:
        self.written.append(proof)

    def proven_since(self, start: MessageId, own: OwnerRecord) -> MessageId | None:
        self.read.append((start, own))
        return None if self.replaced else record(5)

    @property
    def keepalive(self) -> World:
        return self

    def ping(self) -> int:
        self.pings += 1
        return self.pings

    def turn(self, now: float, *, stored: MessageId | None = None, answered: int = 0) -> int:
        """A turn of the connection. Returns how many pings were sent in it."""
        self.last_stored, self.answered = stored or self.last_stored, answered
        before = self.pings
        self.ownership.ping([cast(Any, self)], now)
        return self.pings - before


def test_h23_a_record_is_surely_ours_once_the_broker_has_answered_what_it_was_asked_behind_it() -> None:
    world = World()
    first, stale = record(1), record(9)
    assert world.turn(0.0) == 0
    world.pings = 2  # of the keep-alive
    assert world.turn(0.0, stored=first) == 1
    assert world.turn(60.0, stored=stale, answered=2) == 0  # what was asked before; one question at a time
    assert world.ownership.own is None
    # Both links are lost without a word, a successor comes and goes, Pulsar's link is back first, and the broker's looks
    # as it did: a write that waited is stored behind the successor's.
    assert world.turn(60.0, answered=3) == 1
    assert world.ownership.own is first
    world.turn(60.0, answered=3)
    world.ownership.disconnected()
    world.turn(61.0, answered=7)  # on the next connection
    assert world.ownership.own is first


def test_the_broker_is_asked_now_and_then_and_not_when_nothing_was_written() -> None:
    world = World()
    first, second = record(1), record(2)
    assert world.turn(10.0, stored=first) == 1
    assert world.turn(12.0, stored=second, answered=1) == 0
    assert world.turn(15.0, answered=1) == 1
    world.ownership.disconnected()
    assert world.turn(16.0) == 0
    assert world.turn(20.0) == 1  # on the next connection it is asked again
    assert world.turn(60.0, answered=3) == 0  # nothing was written since
    assert world.ownership.own is second


def test_an_owner_that_has_sent_nothing_leaves_a_record_that_shows_it() -> None:
    world = World()
    ownership = world.ownership
    ownership.connected(1)
    ownership.begin({"": 1})
    before, begun = world.written
    assert [one.record.idle for one in world.written] == [True, False]
    ownership.stored(before)
    assert ownership.proven_epoch() == 0, "nothing is sent before the second one is stored"
    ownership.stored(begun)
    assert ownership.proven_epoch() == 1


def test_of_several_brokers_all_must_have_answered_because_a_successor_needs_one() -> None:
    world, other = World(), World()
    ownership = Ownership(cast(Any, world), world.posted.append, ("a", "b"))
    links = [cast(Any, world), cast(Any, other)]
    world.last_stored = record(1)
    ownership.ping(links, 0.0)
    assert (world.pings, other.pings) == (1, 1)
    world.answered = 1
    ownership.ping(links, 1.0)
    assert ownership.own is None
    other.answered = 1
    ownership.ping(links, 2.0)
    assert ownership.own is world.last_stored


def test_h23_a_lost_connection_is_in_doubt_alone_until_our_record_is_read_behind_the_last_certain_one() -> None:
    world = World()
    ownership = Ownership(cast(Any, world), world.posted.append, ("a", "b"))
    for link in ("a", "b"):
        ownership.connected(1, link)
    for proof in world.written:
        ownership.stored(proof)
    ownership.own = record(1)
    ownership.disconnected("b")
    ownership.disconnected("b")  # and an attempt that failed
    ownership.connected(2, "a")
    assert ownership.lost == ("b",)
    assert ownership.proven_epoch("a") == 1
    lost, other = world.written[2:]
    for proof in (lost, other):
        ownership.stored(proof)
    poll_for(lambda: world.posted, 20, "the first check")
    assert ownership.lost == ("b",)
    ownership.checked(cast(Checked, world.posted.pop()))
    assert ownership.lost == ()
    poll_for(lambda: world.posted, 20, "the second check")
    assert world.read == [(record(1), lost.record), (record(5), other.record)], "one after the other"
    ownership.checked(cast(Checked, world.posted.pop()))
    assert ownership.proven_epoch("a") == 2
    world.replaced = True
    ownership.stored(ownership.write())
    poll_for(lambda: world.posted, 20, "the third check")
    with pytest.raises(FencedError):
        ownership.checked(cast(Checked, world.posted.pop()))
    ownership.close()
