"""Answers to a device that names the position to resume from, and what becomes of these answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from bridge.contract.commands import Command, CommandPosition
from bridge.contract.tagged_positions import PositionTags
from bridge.mqtt.client import Link
from bridge.mqtt.types import Connected, Disconnected
from bridge.pulsar.client import Message
from bridge.pulsar.read_budget import ReadBudget
from bridge.push.actions import (
    Action,
    AnswerRequest,
    DeadLetter,
    Push,
    ResumeRequest,
    StoreCursor,
    StoreReceipt,
    StoreSegment,
)
from bridge.push.cursor import Cursor
from bridge.push.effects import Effects
from bridge.push.metrics import PushMetrics
from bridge.push.partition import Partition
from bridge.push.partition_log import PartitionLog
from bridge.push.request_log import Asked
from bridge.push.states import Mode
from bridge.settings import MqttSettings, Settings
from tests.support.push_limits import Limits
from tests.support.stored_message import StoredMessage

SECOND = 1_000_000
NOW = 1_000 * SECOND


def place(number: int) -> CommandPosition:
    return CommandPosition(7, number, -1)


def stored(core: Partition, now: int) -> list[Action]:
    """Take what the core decides, all stored at once and all pushed confirmed by the broker."""
    found: list[Action] = []
    while actions := core.take(now):
        for action in actions:
            found.append(action)
            if isinstance(action, Push):
                core.links[""].sent(action.number, now)
                core.confirmed(action.number, 0, now)
            elif isinstance(action, StoreCursor):
                core.cursor_stored(action.device)
            elif isinstance(action, StoreSegment):
                core.segment_stored(action.parked)
            elif isinstance(action, StoreReceipt):
                core.settlement.receipt_stored(action.position)
    return found


def test_h27_after_a_clean_takeover_a_device_may_name_what_it_had_and_is_parked_since() -> None:
    limits = Limits(park_after=1, answers=True, answer_timeout_us=3 * SECOND)
    former = Partition(0, limits.nested(), {}, None)
    former.link_up()
    for number in (1, 2):
        former.arrived(place(number), Command(f"c-{number}", "d", "t", b"x"), NOW)
    done = stored(former, NOW)
    assert [one.position for one in done if isinstance(one, Push)] == [place(1)]
    for later in (4, 5):
        former.tick(NOW + later * SECOND)
        done += stored(former, NOW + later * SECOND)
    assert former.devices.mode_of("d") is Mode.PARKED
    segments = {one.key: one.payload for one in done if isinstance(one, StoreSegment)}
    now = NOW + 10 * SECOND
    core = Partition(0, limits.nested(), {}, None, {"d": {k: v for k, v in segments.items() if v}}, now_us=now)
    core.link_up()
    core.resume.asked(ResumeRequest("d", "text", place(1), now, 1), now)
    answers = [one for one in stored(core, now) if isinstance(one, AnswerRequest)]
    assert [one.answer.error for one in answers] == [""]
    refused = core.resume.asked(ResumeRequest("d", "text", place(3), now, 2), now)
    assert refused is not None
    assert "no such command yet" in refused.error


class Connection:
    """Connections one after the other: keeps what is published on the one that stands."""

    client_id = "push"
    settings = MqttSettings()
    connected = True
    granted = Connected(1, False, 65535)
    epoch = 1

    def __init__(self) -> None:
        self.sent: dict[str, Callable[[int], None]] = {}

    def publish(
        self,
        topic: str,
        _payload: bytes,
        *,
        confirmed: Callable[[int], None],
        sent: Callable[[], None],
        **_more: object,
    ) -> None:
        self.sent[topic] = confirmed
        sent()

    def wake(self) -> None:
        pass


class Requests:
    partition = 0

    def __init__(self) -> None:
        self.acknowledged: list[object] = []

    def is_ours(self, _device: str) -> bool:
        return True

    @property
    def requests(self) -> Requests:
        """As of a partition: its requests are acknowledged here as well."""
        return self

    def acknowledge(self, message: object) -> None:
        self.acknowledged.append(message)


class Clock:
    now = 1000.0

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("bridge.push.resume_answers.time.monotonic", lambda: self.now)


def asking(link: Connection, log: Requests, devices: str) -> tuple[Partition, Effects]:
    """A partition that gets an unreadable request of each of ``devices``: each gets an error."""
    names = {*devices, *(f"b{number}" for number in range(9))}
    cursors = {name: Cursor(8, place(0)) for name in names}
    core = Partition(0, Limits(retry_min_us=SECOND, retry_max_us=4 * SECOND).nested(), cursors, None)
    effects = Effects(
        Settings(),
        core,
        {"": cast(Link, link)},
        cast(PartitionLog, log),
        cast(ReadBudget, None),
        PushMetrics(CollectorRegistry()),
        lambda _at: None,
        PositionTags(b"secret", 0),
    )
    core.link_up()
    effects.resume.answers[""].link_up()
    for device in devices:
        effects.resume.asked(Asked.of(cast(Message, StoredMessage(1, device, b"no position"))))
    return core, effects


def ended(core: Partition, effects: Effects, link: Connection, now_us: int, *, closed: bool) -> None:
    """The connection ends, and the next one stands."""
    event = Disconnected(link.epoch, "", closed_by_peer=closed)
    core.link_down(now_us, closed=effects.link_down(event))
    link.sent.clear()
    link.epoch += 1
    core.links[""].broker_answered()
    core.link_up()
    effects.resume.answers[""].link_up()


def test_an_answer_at_which_the_broker_closes_is_given_up_and_no_command_is_blamed_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, link, log = Clock(monkeypatch), Connection(), Requests()
    core, effects = asking(link, log, "a")
    core.arrived(place(1), Command("c-1", "d", "t/d", b"x"), NOW)
    closes = 0
    with capture_logs() as lines:
        for step in range(100):
            now = NOW + step * SECOND
            core.tick(now)
            for action in core.take(now):
                assert isinstance(action, Push), "nothing is given up"
                effects.begin(action)
            effects.overdue()
            if any("resumed" in topic for topic in link.sent):
                closes += 1
                clock.now += 0.05
                ended(core, effects, link, now, closed=True)
            clock.now += 1
    assert closes == 3
    assert len(log.acknowledged) == 1
    assert [line["log_level"] for line in lines] == ["warning"]
    assert "t/d" in link.sent, "the command waits for its PUBACK on the connection that stays"


def test_a_command_at_which_the_broker_closes_is_found_although_an_answer_was_sent_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, link, log = Clock(monkeypatch), Connection(), Requests()
    core, effects = asking(link, log, "a")
    core.arrived(place(1), Command("c-1", "d", "t/d", b"x"), NOW)
    dead: list[CommandPosition] = []
    for step in range(60):
        now = NOW + step * SECOND
        core.tick(now)
        for action in core.take(now):
            if isinstance(action, Push):
                effects.begin(action)
            elif isinstance(action, DeadLetter):
                dead.append(action.position)
        effects.overdue()
        if "t/d" in link.sent:
            ended(core, effects, link, now, closed=True)
        elif dead:
            for topic in list(link.sent):
                link.sent.pop(topic)(0)
        clock.now += 1
    assert dead == [place(1)]
    assert len(log.acknowledged) == 1, "the answer was stored"


@pytest.mark.parametrize("other", ["answer", "command", "none"])
def test_an_answer_that_is_never_confirmed_while_what_was_sent_later_is_is_given_up(
    monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    clock, link, log = Clock(monkeypatch), Connection(), Requests()
    core, effects = asking(link, log, "a")
    silent = next(iter(link.sent))
    for turn in range(4):
        for _ in range(12):
            clock.now += 1
            effects.overdue()
        if other == "answer":
            effects.resume.asked(Asked.of(cast(Message, StoredMessage(2 + turn, f"b{turn}", b"no position"))))
        elif other == "command":
            core.arrived(place(turn + 1), Command(f"c-{turn}", f"d{turn}", f"t/{turn}", b"x"), NOW)
            for action in core.take(NOW):
                if isinstance(action, Push):
                    effects.begin(action)
        for topic in [one for one in link.sent if one != silent]:
            link.sent.pop(topic)(0)
        clock.now += 61
        if effects.overdue() is not None:
            ended(core, effects, link, NOW, closed=False)
    assert (silent not in link.sent) is (other != "none")
    assert len(log.acknowledged) == {"answer": 5, "command": 1, "none": 0}[other]
