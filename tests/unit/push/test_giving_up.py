"""What is given up: dead letter, receipt, cursor and acknowledgement, in this order, whatever goes on beside it (H25)."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from bridge.push.actions import Ack, DeadLetter, Push, StoreCursor, StoreReceipt, StoreSegment
from bridge.push.partition import Partition
from bridge.push.states import Mode
from tests.simulation.push_world import PushWorld
from tests.support.push_limits import Limits
from tests.unit.push.test_parking import (
    ABSENT,
    EVENTS,
    LIMITS,
    MOVES,
    NOW,
    SMALL,
    a_core,
    command,
    of,
    play,
    position,
)


def parked_and_full() -> Partition:
    """Return a core with one parked command, whose device came back, and one that overflowed; of that nothing is stored."""
    core = a_core(replace(LIMITS, parked_max=1, answers=False))
    core.gone("d", NOW, NOW)
    core.arrived(position(1), command(1), NOW)
    (segment,) = of(StoreSegment, core.take(NOW + Limits().coalesce_us))
    core.segment_stored(segment.parked)
    core.arrived(position(2), command(2), NOW)
    assert [one.position for one in of(DeadLetter, core.take(NOW))] == [position(2)]
    core.alive("d", NOW + 1)
    assert of(StoreCursor, core.take(NOW + 1)), "that it is back"
    core.cursor_stored("d")
    core.pulled("d", core.devices.awake["d"].replay.epoch, position(1), command(1), NOW + 1)
    (push,) = of(Push, core.take(NOW + 1))
    core.confirmed(push.number, 0, NOW + 1)
    core.take(NOW + 1)
    core.settlement.receipt_stored(position(1))
    (cursor,) = of(StoreCursor, core.take(NOW + 1))
    core.cursor_stored(cursor.device)
    core.take(NOW + 1)
    assert core.devices.mode_of("d") is Mode.LIVE
    return core


def test_h25_no_cursor_passes_what_overflowed_before_its_dead_letter_and_receipt_are_stored() -> None:
    core = parked_and_full()
    core.arrived(position(3), command(3), NOW + 2)
    assert core.take(NOW + 2) == [], "died here, a later owner would send the second, and the third without a mark"
    core.settlement.dead_letter_stored(position(2))
    (receipt,) = of(StoreReceipt, core.take(NOW + 2))
    assert (receipt.position, receipt.receipt.state) == (position(2), "overflowed")
    core.settlement.receipt_stored(position(2))
    done = core.take(NOW + 2)
    assert of(Ack, done) == [Ack(position(2))]
    assert [one.device for one in of(StoreCursor, done)] == ["d"]
    assert of(Push, done) == []
    core.cursor_stored("d")
    assert [one.position for one in of(Push, core.take(NOW + 2))] == [position(3)]


def test_h25_what_is_given_up_is_acknowledged_when_its_id_is_known_to_every_later_owner() -> None:
    core = a_core(replace(LIMITS, attempts=1, answers=False))
    core.arrived(position(1), command(1), NOW)
    (push,) = of(Push, core.take(NOW))
    core.confirmed(push.number, 0x97, NOW)
    assert of(DeadLetter, core.take(NOW))
    core.settlement.dead_letter_stored(position(1))
    assert [one.receipt.state for one in of(StoreReceipt, core.take(NOW))] == ["rejected"]
    core.settlement.receipt_stored(position(1))
    assert [type(one) for one in core.take(NOW)] == [StoreCursor]
    core.cursor_stored("d")
    assert core.take(NOW) == [Ack(position(1))]
    assert core.settled


@pytest.mark.parametrize("limits", [LIMITS, replace(LIMITS, answers=False), ABSENT])
@pytest.mark.parametrize("changes", [SMALL | {"attempts": 2}, {"attempts": 2, "parked_max": 3}])
@pytest.mark.parametrize("seed", [1069, 1235])
def test_h25_h30_no_long_walk_loses_what_is_given_up_while_one_topic_is_behind_the_others(
    seed: int, changes: dict[str, int], limits: Limits
) -> None:
    for moves in (EVENTS, MOVES):
        walk = Random(seed)
        play(
            PushWorld(replace(limits, **changes)),  # type: ignore[arg-type]
            [(walk.choice(moves), walk.randrange(1000)) for _ in range(300)],
        )
