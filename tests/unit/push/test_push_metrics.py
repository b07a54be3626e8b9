"""What push shows of its partitions and of the lag that Pulsar reports."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry

from bridge.contract import PUSH_SUBSCRIPTION, Receipt
from bridge.contract.commands import Command, CommandPosition
from bridge.push.metrics import PushMetrics
from bridge.push.partition import Partition
from bridge.push.worker import backlogs
from tests.support.push_limits import Limits

TOPIC = "persistent://public/system/commands"


def stats(**partitions: Any) -> dict[str, Any]:
    return {"partitions": {f"{TOPIC}-partition-{name[1:]}": value for name, value in partitions.items()}}


def test_the_lag_is_that_of_push_s_own_subscription_where_it_is_known() -> None:
    ours, other = {"msgBacklog": 7}, {"msgBacklog": 900}
    reported = stats(
        p0={"subscriptions": {PUSH_SUBSCRIPTION: ours, "audit": other}},
        p1={"subscriptions": {"audit": other}},
        p9={"subscriptions": {PUSH_SUBSCRIPTION: ours}},
    )
    assert backlogs(reported, TOPIC, 3) == {0: 7}
    assert backlogs({}, TOPIC, 3) == {}


def test_a_partition_that_was_given_up_shows_nothing_of_it_any_more() -> None:
    registry = CollectorRegistry()
    metrics = PushMetrics(registry)
    partition = metrics.partition(3)

    def shown(name: str) -> float | None:
        return registry.get_sample_value(f"pulsebridge_push_{name}", {"partition": "3"})

    partition.owner(True)
    partition.gauges["pending"].set(5)
    partition.gauges["oldest_pending_seconds"].set(9.0)
    partition.lag(40)
    assert [shown(n) for n in ("owned", "pending", "oldest_pending_seconds", "lag_commands")] == [1, 5, 9, 40]
    partition.owner(False)
    partition.lag(40)
    assert [shown(n) for n in ("owned", "pending", "oldest_pending_seconds", "lag_commands")] == [0, 0, 0, 0]


def test_times_are_taken_from_receipts_of_delivered_commands() -> None:
    registry = CollectorRegistry()
    metrics = PushMetrics(registry)
    at = 1_000_000_000
    metrics.stored(
        Receipt(
            "a",
            "d",
            "t",
            "delivered",
            emitted_at_us=at,
            pushed_at_us=at + 500_000,
            confirmed_at_us=at + 750_000,
        )
    )
    metrics.stored(Receipt("b", "d", "t", "delivered"))  # recovered: its push was a former owner's
    metrics.stored(Receipt("c", "d", "t", "expired", emitted_at_us=at))
    assert registry.get_sample_value("pulsebridge_push_confirm_seconds_count") == 1
    assert registry.get_sample_value("pulsebridge_push_confirm_seconds_sum") == 0.25
    assert registry.get_sample_value("pulsebridge_push_delivery_seconds_sum") == 0.75
    assert registry.get_sample_value("pulsebridge_push_receipts_total", {"state": "delivered"}) == 2


def test_a_partition_shows_its_devices_those_that_refuse_and_the_age_of_the_oldest_command() -> None:
    registry = CollectorRegistry()
    partition = PushMetrics(registry).partition(0)
    core = Partition(0, Limits().nested(), {}, None)
    core.link_up()

    def shown() -> list[float | None]:
        partition.show(core, 2_000_100, {})
        names = ("devices", "held_back_devices", "oldest_pending_seconds")
        return [registry.get_sample_value(f"pulsebridge_push_{name}", {"partition": "0"}) for name in names]

    assert shown() == [0, 0, 0]
    for number, device in enumerate(("a", "b")):
        command = Command(f"{device}-1", device, f"{device}/commands", b"x", emitted_at_us=100 + number)
        core.arrived(CommandPosition(1, number, -1), command, 1000)
    pushes = core.take(1000)
    assert shown() == [2, 0, 2]
    core.confirmed(pushes[0].number, 0x87, 2000)  # type: ignore[union-attr]
    assert shown() == [2, 1, 2]
