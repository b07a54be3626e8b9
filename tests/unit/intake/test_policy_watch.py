"""What in a topic's own policies loses messages, and when a quota gives the alarm."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.dead_letters.blocks import Block
from bridge.intake.provisioning import half_used, topic_problems

TOPIC = "persistent://public/pulsebridge/fleet"
HOLD = {"limitSize": 1, "limitTime": -1, "policy": "producer_request_hold"}


def test_a_topic_without_policies_of_its_own_has_no_problem() -> None:
    assert topic_problems(TOPIC, None, None, {}) == []
    assert topic_problems(TOPIC, 0, {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}, {"s": HOLD}) == []


@pytest.mark.parametrize(
    ("ttl", "retention", "quotas", "command"),
    [
        (60, None, {}, "remove-message-ttl"),
        (None, {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}, {}, "remove-retention"),
        (None, {"retentionTimeInMinutes": 5, "retentionSizeInMB": 0}, {}, "remove-retention"),
        (
            None,
            None,
            {"destination_storage": HOLD | {"policy": "producer_exception"}},
            "remove-backlog-quota",
        ),
        (None, None, {"message_age": HOLD | {"policy": "consumer_backlog_eviction"}}, "--type message_age"),
    ],
)
def test_h13_each_problem_of_a_topic_names_its_command(
    ttl: object, retention: object, quotas: object, command: str
) -> None:
    (problem,) = topic_problems(TOPIC, ttl, retention, quotas)
    assert f"pulsar-admin topicPolicies {command.split()[0]}" in problem or command in problem
    assert TOPIC in problem


@given(st.integers(0, 2**50), st.integers(-1, 2**50))
def test_h13_the_alarm_comes_from_half_of_the_quota_on(used: int, limit: int) -> None:
    stats = {
        "backlogSize": used,
        "backlogQuotaLimitSize": limit,
        "subscriptions": {"slow": {"msgBacklog": 3}},
    }
    line = half_used(TOPIC, stats)
    assert bool(line) == (limit > 0 and used >= limit / 2)
    assert not line or "slow has the largest backlog" in line


def test_a_block_is_kept_under_its_partition_and_its_worker() -> None:
    block = Block(3, "edge.a", "blocked", 7, "over its quota")
    assert block.name == "pulsebridge.blocked.3.edge.a"
    assert '"state": "blocked"' in block.encode()
