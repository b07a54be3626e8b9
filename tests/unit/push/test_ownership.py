"""What a push that lost its connections takes for its own (H23): nothing that the MQTT broker has not answered for."""

from __future__ import annotations

from bridge.pulsar.client import MessageId, message_id
from bridge.push.connection import OwnRecord


def record(entry: int) -> MessageId:
    return message_id(0, 1, entry, -1)


def test_h23_a_record_is_surely_ours_once_the_broker_has_answered_what_it_was_asked_behind_it() -> None:
    sure = OwnRecord()
    first, stale = record(1), record(9)
    assert sure.question(None, 0.0) is None
    assert sure.question(first, 0.0) is first
    sure.asked(3, first, 0.0)
    sure.answered(2)  # what was asked before
    assert sure.record is None
    assert sure.question(stale, 60.0) is None  # one question at a time
    sure.answered(3)
    assert sure.record is first
    # Both links are lost without a word, a successor comes and goes, Pulsar's link is back first, and the broker's looks
    # as it did: a write that waited is stored behind the successor's.
    assert sure.question(stale, 60.0) is stale
    sure.asked(4, stale, 60.0)
    sure.answered(3)
    sure.lost()
    sure.answered(7)  # on the next connection
    assert sure.record is first


def test_the_broker_is_asked_now_and_then_and_not_when_nothing_was_written() -> None:
    sure = OwnRecord()
    first, second = record(1), record(2)
    sure.asked(1, first, 10.0)
    sure.answered(1)
    assert sure.question(first, 60.0) is None
    assert sure.question(second, 12.0) is None
    assert sure.question(second, 15.0) is second
    sure.asked(2, second, 15.0)
    sure.lost()
    assert sure.question(second, 16.0) is None
    assert sure.question(second, 20.0) is second  # on the next connection it is asked again
