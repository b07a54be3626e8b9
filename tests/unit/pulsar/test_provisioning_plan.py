"""The plan of provisioning: its steps, their order, and the missing resources."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from bridge.pulsar.provisioning_plan import grant_steps, policies_lack
from bridge.routing.readings_topics import static_topics
from bridge.settings import Settings
from bridge.settings.ingest import IngestSettings, TopicRule
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.cli.provision import whole_plan

PULSAR = PulsarSettings()
GOOD: dict[str, Any] = {
    "retention_policies": {"retentionTimeInMinutes": 4320, "retentionSizeInMB": -1},
    "message_ttl_in_seconds": 0,
    "subscription_expiration_time_minutes": 0,
    "inactive_topic_policies": {"deleteWhileInactive": False},
    "backlog_quota_map": {"destination_storage": {"policy": "producer_request_hold"}},
    "autoTopicCreationOverride": {"allowAutoTopicCreation": False},
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"retention_policies": None}, "set-retention public/x"),
        (
            {"retention_policies": {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}},
            "--time 4320m --size -1",
        ),
        ({"message_ttl_in_seconds": 60}, "set-message-ttl public/x --messageTTL 0"),
        ({"subscription_expiration_time_minutes": 5}, "set-subscription-expiration-time public/x --time 0"),
        ({"inactive_topic_policies": None}, "--disable-delete-while-inactive"),
        ({"autoTopicCreationOverride": None}, "set-auto-topic-creation public/x --disable"),
        (
            {"backlog_quota_map": {"destination_storage": {"policy": "producer_exception"}}},
            "producer_request_hold",
        ),
        (
            {"backlog_quota_map": {"message_age": {"policy": "consumer_backlog_eviction"}}},
            "--type message_age",
        ),
    ],
)
def test_h1_h13_policies_that_lose_messages_are_named_with_the_command(changes: dict[str, Any], words: str) -> None:
    assert policies_lack("public/x", GOOD, PULSAR) == []
    (step,) = policies_lack("public/x", GOOD | changes, PULSAR)
    assert words in step.shell
    assert step.why


def test_namespaces_that_others_share_may_go_on_making_topics_by_themselves() -> None:
    shared = PulsarSettings(auto_topics="leave")
    assert policies_lack("public/x", GOOD | {"autoTopicCreationOverride": None}, shared) == []


def test_retention_settings_come_before_the_topics_and_subscriptions_before_commands() -> None:
    commands = [step.shell for step in whole_plan(Settings())]
    first = {word: next(i for i, c in enumerate(commands) if word in c) for word in ("create-partitioned", "cursors-p")}
    assert all(i < first["create-partitioned"] for i, c in enumerate(commands) if " namespaces " in c)
    assert "create-subscription" in commands[first["cursors-p"]]
    assert commands[-1].startswith(
        "pulsar-admin topics create-subscription persistent://public/pulsebridge-system/commands-"
    )
    assert len(set(commands)) == len(commands)


def test_topics_that_rules_name_without_a_capture_are_known_beforehand() -> None:
    rules = (
        TopicRule(name="a", filter="plant/+device/#", topic="plant", device="{device}"),
        TopicRule(name="b", filter="lab/+room/#", topic="lab-{room}"),
        TopicRule(name="c", filter="yard/#", topic="{level1}"),
    )
    settings = Settings(ingest=IngestSettings(routes=rules))
    assert static_topics(settings) == [
        "persistent://public/pulsebridge/plant",
        "persistent://public/pulsebridge/yard",
    ]
    assert static_topics(Settings()) == []


def test_a_role_that_two_tiers_share_gets_the_rights_of_both_in_one_grant() -> None:
    steps = grant_steps(PULSAR, {"ingest": "bridge", "push": "bridge", "source": "spark"})
    assert [step.shell for step in steps] == [
        "pulsar-admin namespaces grant-permission public/pulsebridge --role bridge --actions produce",
        "pulsar-admin namespaces grant-permission public/pulsebridge --role spark --actions consume",
        "pulsar-admin namespaces grant-permission public/pulsebridge-system --role bridge --actions consume,produce",
    ]


def test_a_name_that_a_shell_would_read_otherwise_is_quoted() -> None:
    (step, _) = grant_steps(PULSAR, {"ingest": "a role; rm -rf /"})
    assert shlex.split(step.shell)[5] == "a role; rm -rf /"
