"""Which commands are traced, and how long each step took."""

from __future__ import annotations

from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from bridge.contract import C_ID
from bridge.contract.commands import Command, CommandPosition
from bridge.pulsar.messages import StoredMessage
from bridge.pulsar.sending import Stored
from bridge.push.actions import Ack, Push, StoreCursor, StoreReceipt
from bridge.push.device_protocol import DeviceAnswer
from bridge.push.partition import Partition
from bridge.push.tracing import Answered, Confirmed, Tracer
from tests.support.push_limits import Limits

SECOND = 1_000_000


def at(number: int) -> CommandPosition:
    return CommandPosition(1, number, -1)


class Traced:
    """A tracer with a clock of its own, and the lines that it writes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, wanted: str, most: int = 10_000) -> None:
        self.now = 10 * SECOND
        monkeypatch.setattr("bridge.push.tracing.time.time_ns", lambda: self.now * 1000)
        self.core = Partition(0, Limits(answers=True).nested(), {}, None)
        self.core.link_up()
        self.tracer = Tracer(wanted, self.core, 0, 2, most)

    def see(self, step: object) -> list[dict[str, Any]]:
        with capture_logs() as lines:
            self.tracer.see(step)
        return cast(list[dict[str, Any]], lines)

    def names(self, step: object) -> list[tuple[str, str]]:
        return [(line["event"], line["command_id"]) for line in self.see(step)]

    def arrives(self, number: int, published_ms: int = 10_000) -> list[dict[str, Any]]:
        properties = {C_ID: f"c-{number}"}
        return self.see(StoredMessage(at(number), cast(Any, None), "d", b"x", properties, published_ms))

    def pushes(self, number: int) -> list[dict[str, Any]]:
        return self.see(Push(number, at(number), Command(f"c-{number}", "d", "t", b"x"), False))

    def answers(self, number: int) -> list[dict[str, Any]]:
        return self.see(Answered(DeviceAnswer(at(number), "", b"", False), True))


@pytest.mark.parametrize(("wanted", "traced"), [("all", True), ("c-1", True), ("d", True), ("c-2", False)])
def test_a_command_is_traced_by_its_id_by_its_device_or_with_all(
    monkeypatch: pytest.MonkeyPatch, wanted: str, traced: bool
) -> None:
    assert bool(Traced(monkeypatch, wanted).arrives(1)) == traced


def test_each_step_shows_its_time_and_the_milliseconds_since_the_previous_one(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = Traced(monkeypatch, "all")
    traced.now += 1500
    (first, *_) = traced.arrives(1)
    traced.now += 2500
    (second,) = traced.pushes(1)
    assert first == {
        "event": "notified",
        "log_level": "info",
        "command_id": "c-1",
        "device": "d",
        "at": "1970-01-01T00:00:10.001+00:00",
        "ms": 1.5,
        "position": at(1).encode(0, 2),
    }
    assert second["ms"] == 2.5
    (unknown, *_) = traced.arrives(2, published_ms=0)
    assert unknown["ms"] is None


def test_a_cursor_shows_each_command_that_it_covers_once(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = Traced(monkeypatch, "d")
    core, now_us = traced.core, traced.now
    for number in (1, 2, 3):
        traced.arrives(number)
        core.arrived(at(number), Command(f"c-{number}", "d", "t", b"x"), now_us)
    actions = core.take(now_us)
    for number in (1, 2):
        (push,) = (one for one in actions if isinstance(one, Push))
        assert core.answered(push.position, b"", now_us, failed=False)
        (cursor,) = core.take(now_us)
        assert isinstance(cursor, StoreCursor)
        assert traced.names(cursor) == []
        assert traced.names(Stored(cursor)) == [("cursor", f"c-{number}")]
        core.cursor_stored("d")
        assert traced.names(Stored(cursor)) == []
        actions = core.take(now_us)
        assert any(isinstance(one, StoreReceipt) for one in actions)


def test_no_more_is_remembered_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = Traced(monkeypatch, "all", most=10)
    for number in range(100):
        traced.arrives(number)
        traced.pushes(number)
    assert [n for n in range(100) if traced.answers(n)] == list(range(90, 100))
    assert [n for n in range(100) if traced.see(Confirmed(at(n), 0))] == list(range(90, 100))
    assert traced.names(Ack(at(99))) == [("acked", "c-99")]
    assert traced.answers(99) == []
