"""The subscription of a query while Pulsar is away now and then."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from bridge.contract import Position
from bridge.errors import TransientError
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import MessageId, PulsarClient
from sources.planning import Ledger, PartitionView
from sources.retention import RetentionSubscription, SubscriptionRecord

PARTITIONS = ("a", "b")
END = Position(3, 10)


class Pulsar:
    """Gives out consumers unless it is away, and drops each acknowledgement."""

    renewals = 0

    def __init__(self) -> None:
        self.away = False
        self.acknowledged: list[str] = []
        self.attached: list[str] = []

    def consumer(self, partition: str, *_args: object, **_more: object) -> Consumer:
        if self.away:
            raise TransientError("Pulsar is away")
        self.attached.append(partition)
        return Consumer(self, partition)

    def request(self, *_args: object, **_more: object) -> None:
        return None


class Consumer:
    def __init__(self, pulsar: Pulsar, partition: str) -> None:
        self._pulsar = pulsar
        self._partition = partition

    def acknowledge_cumulative(self, _message: MessageId) -> None:
        self._pulsar.acknowledged.append(self._partition)

    def close(self) -> None:
        if self._partition in self._pulsar.attached:
            self._pulsar.attached.remove(self._partition)


def test_h16_a_commit_is_sent_again_once_pulsar_is_reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(
        "sources.retention.time",
        SimpleNamespace(monotonic=lambda: now[0], sleep=lambda s: now.append(now.pop() + s)),
    )
    pulsar = Pulsar()
    hold = RetentionSubscription("q", cast(PulsarAdmin, pulsar), cast(PulsarClient, pulsar), wait_s=0)
    views = {name: PartitionView(name, (Ledger(3, 20),), {"q": Position(3, -1)}) for name in PARTITIONS}
    hold.attach(PARTITIONS)
    for name in PARTITIONS:
        hold.remember(name, SubscriptionRecord("earliest", Position(3, 0), True))
    hold.commit(views, dict.fromkeys(PARTITIONS, END))
    assert pulsar.acknowledged == [*PARTITIONS]
    pulsar.away = True
    for _ in range(3):  # each trigger asks; Spark waits out what is transient
        now[0] += 100
        with pytest.raises(TransientError):
            hold.check(views)
    pulsar.away = False
    now[0] += 100
    assert hold.check(views) == [*PARTITIONS]
    assert pulsar.acknowledged == [*PARTITIONS] * 2
    assert sorted(pulsar.attached) == [*PARTITIONS]


def test_consumers_that_a_new_password_closed_are_attached_again() -> None:
    pulsar = Pulsar()
    hold = RetentionSubscription("q", cast(PulsarAdmin, pulsar), cast(PulsarClient, pulsar), wait_s=0)
    hold.attach(PARTITIONS)
    first = [hold.consumer(name) for name in PARTITIONS]
    pulsar.renewals += 1
    pulsar.away = True
    with pytest.raises(TransientError):
        hold.commit({}, {})
    pulsar.away = False
    assert not set(first) & {hold.consumer(name) for name in PARTITIONS}
    assert sorted(pulsar.attached) == [*PARTITIONS]
