"""Whether the MQTT broker reports a missing subscriber: its answer to the probe, and its PUBACKs."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from bridge.contract.commands import Command, CommandPosition
from bridge.mqtt.client import Link
from bridge.mqtt.types import Message
from bridge.push.actions import Pull, Push, StoreCursor, StoreSegment
from bridge.push.inbound import Inbound
from bridge.push.metrics import PushMetrics
from bridge.push.partition import Partition
from bridge.push.partition_log import PartitionLog
from bridge.settings import Settings
from bridge.settings.push import PresenceRule, PushSettings
from tests.support.push_limits import Limits

SECOND = 1_000_000
NOW = 1_000 * SECOND
AT = CommandPosition(7, 1, -1)
NO_SUBSCRIBERS, DENIED = 0x10, 0x87


class Asked:
    """The connection on which it is asked."""

    client_id = "push"

    def __init__(self) -> None:
        self.answers: list[Callable[[int], None]] = []

    def subscribe(self, _wanted: object) -> None:
        pass

    def publish(self, _topic: str, _payload: bytes, *, properties: object, confirmed: Callable[[int], None]) -> None:
        self.answers.append(confirmed)


class OnePartition:
    partition = 0

    def is_ours(self, _device: str) -> bool:
        return True


def tried(core: Partition, now: int, reason: int) -> int:
    """Let an hour pass in which each push is answered with ``reason``. Returns how many were made."""
    pushes = 0
    command = Command("c-1", "d", "t", b"x")
    for second in range(3600):
        at = now + second * SECOND
        core.tick(at)
        while actions := core.take(at):
            for action in actions:
                if isinstance(action, Push):
                    pushes += 1
                    core.links[""].sent(action.number, at)
                    core.confirmed(action.number, reason, at)
                elif isinstance(action, StoreSegment):
                    core.segment_stored(action.parked)
                elif isinstance(action, Pull):
                    core.pulled(action.device, action.epoch, AT, command, at)
                elif isinstance(action, StoreCursor):
                    core.cursor_stored(action.device)
    return pushes


def parked_by_0x10() -> Partition:
    core = Partition(0, Limits(park_after=3).nested(), {}, None)
    core.link_up(reports_absence=False)
    core.arrived(AT, Command("c-1", "d", "t", b"x"), NOW)
    return core


def test_h31_a_broker_that_reports_no_subscriber_for_a_command_needs_no_probe() -> None:
    assert tried(parked_by_0x10(), NOW, NO_SUBSCRIBERS) > 3


@pytest.mark.parametrize(("reason", "reported"), [(DENIED, True), (NO_SUBSCRIBERS, True), (0, False)])
def test_a_refused_probe_keeps_the_answer_to_a_command_on_the_next_connection(reason: int, reported: bool) -> None:
    core = parked_by_0x10()
    tried(core, NOW, NO_SUBSCRIBERS)
    link = Asked()
    inbound = Inbound(
        Settings(),
        cast(PartitionLog, OnePartition()),
        cast(Link, link),
        PushMetrics(CollectorRegistry()),
        lambda: core.link_up(reports_absence=inbound.reports_absence),
    )
    inbound.serve(core, lambda _answer: False)
    core.link_down(NOW)
    inbound.connected()
    link.answers[0](reason)
    assert inbound.reports_absence is reported
    assert (tried(core, NOW + 3600 * SECOND, NO_SUBSCRIBERS) > 0) is reported


def test_a_broker_that_refuses_the_probe_is_reported_once_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bridge.push.inbound._LOGGED", {})
    link = Asked()
    inbound = Inbound(
        Settings(),
        cast(PartitionLog, OnePartition()),
        cast(Link, link),
        PushMetrics(CollectorRegistry()),
        lambda: None,
    )
    with capture_logs() as lines:
        for _ in range(3):
            inbound.connected()
            link.answers.pop()(DENIED)
    assert [line["log_level"] for line in lines] == ["warning"]
    assert "to write there" in lines[0]["event"]
    assert lines[0]["reason"] == "0x87"
    assert not inbound.reports_absence


def test_h35_signs_that_come_before_the_takeover_are_bounded_in_bytes() -> None:
    rule = PresenceRule(filter="devices/+device/status")
    inbound = Inbound(
        Settings(push=PushSettings(presence={"rules": (rule,)})),
        cast(PartitionLog, OnePartition()),
        cast(Link, Asked()),
        PushMetrics(CollectorRegistry()),
        lambda: None,
    )
    names = [f"{number:060000}" for number in range(1500)]
    for name in names:
        for payload in (b"online", b"offline"):
            inbound.received(Message(f"devices/{name}/status", payload, 0, False, False, 0, None))
    core = Partition(0, Limits().nested(), {}, None)
    inbound.serve(core, lambda _answer: False)
    known = [name for name in names if core.presence.absent(name)]
    assert sum(map(len, known)) < 64 * 1024 * 1024
    assert known == names[-len(known) :]
