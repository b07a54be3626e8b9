"""The expander's side of Pulsar with late, missing and foreign writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
import structlog
from prometheus_client import CollectorRegistry

from bridge.contract import GROUP_ROSTER_TOPIC
from bridge.contract.commands import CommandPosition
from bridge.errors import FencedError, TransientError
from bridge.pulsar.client import OK, MessageId, PulsarClient, message_id
from bridge.push.groups.log import GroupLog, Stopped
from bridge.push.groups.roster import OWNER, Progress, Roster
from bridge.push.metrics import PushMetrics
from bridge.settings import PulsarSettings
from tests.support.stored_message import StoredMessage

Answer = Callable[[object, MessageId], None]


class RosterTopic:
    """The roster's topic: its producer and its readers. It answers nothing while it is ``silent``."""

    settings = PulsarSettings()

    def __init__(self, stored: list[tuple[str, bytes]] | None = None, *, silent: bool = False) -> None:
        self.stored = list(stored or [])
        self.silent = silent
        self._read = 0

    def producer(self, *_args: object, **_more: object) -> RosterTopic:
        return self

    def reader(self, *_args: object, **_more: object) -> RosterTopic:
        return self

    def send_async(self, payload: bytes, *, callback: Answer, partition_key: str) -> None:
        self.stored.append((partition_key, payload))
        if not self.silent:
            callback(OK, message_id(0, 3, len(self.stored), -1))

    def read_next(self, _wait_ms: int) -> StoredMessage:
        number, self._read = self._read, self._read + 1
        return StoredMessage(number, *self.stored[number])

    def close(self) -> None:
        pass


def group_log(topic: RosterTopic, over: Callable[[], bool] = lambda: False, token: str = "us") -> GroupLog:
    metrics = PushMetrics(CollectorRegistry())
    log = GroupLog(cast(PulsarClient, topic), token, over, metrics)
    log.own()
    return log


def test_a_write_that_pulsar_never_answers_ends_the_session_and_names_its_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bridge.push.groups.log._ANSWER_PATIENCE_S", 0.0)
    topic = RosterTopic()
    log = group_log(topic)
    log.read()
    topic.silent = True
    with pytest.raises(TransientError, match=f"{GROUP_ROSTER_TOPIC}.* 2 messages") as raised:
        log.store([OWNER, Roster().known("a")])
    assert raised.value.remedy


def test_a_write_without_an_answer_does_not_delay_a_stop() -> None:
    with pytest.raises(Stopped):
        group_log(RosterTopic(silent=True), lambda: True).read()


def test_a_write_that_is_stored_without_a_receipt_is_known_to_the_next_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bridge.push.groups.log._ANSWER_PATIENCE_S", 0.0)
    topic = RosterTopic()
    former = group_log(topic)
    roster = former.read()
    topic.silent = True
    with pytest.raises(TransientError):
        former.store([roster.known("a"), roster.joined("a", "d")])
    found = group_log(RosterTopic(topic.stored), token="next").read()
    assert (found.groups, found.members) == ({"a"}, {"a": {"d"}})


FOREIGN = [
    ("x", b"{}"),
    ('["progress"]', b'{"v":1,"done":[9,9,9]}'),
    ('["member","a","d"]', b"no JSON"),
    ('["member","a","d"]', b"[]"),
    ('["member","a","d"]', b'{"v":1,"o":7}'),
    ("7", b'{"v":1,"o":"another"}'),
    ("[7]", b""),
    ("", b"no key"),
]


@pytest.mark.parametrize(("key", "payload"), FOREIGN)
def test_a_foreign_record_in_the_roster_is_named_and_left_out(key: str, payload: bytes) -> None:
    known = Roster().joined("a", "b").encode("former")
    topic = RosterTopic([known, (key, payload), ("", b"")])
    log = group_log(topic)
    with structlog.testing.capture_logs() as logs:
        roster = log.read()
        topic.stored.append((key, payload))
        log.store([roster.joined("a", "c")])
    assert (roster.progress, roster.members) == (Progress(), {"a": {"b", "c"}})
    assert [line["position"] for line in logs] == [str(CommandPosition(3, at, -1)) for at in (1, 4)]
    topic.stored.append(Roster().known("a").encode("another"))
    with pytest.raises(FencedError):
        log.store([OWNER])


def test_h44_a_record_of_a_later_version_is_named_and_left_out() -> None:
    with structlog.testing.capture_logs() as logs:
        roster = group_log(RosterTopic([('["progress"]', b'{"v":9,"o":"later"}')])).read()
    assert roster.progress == Progress()
    assert [line["why"] for line in logs] == ["roster of groups has version 9, this reads up to 1"]
