"""A policy that deletes unread messages of a subscription is named with the command that disables it (H13)."""

from __future__ import annotations

from sources.policies import backlog_limit, expiry_error, of_namespace, of_topic

EVICTS = {"destination_storage": {"policy": "consumer_backlog_eviction"}}


def test_h13_policies_that_delete_unread_messages_are_found_with_their_commands() -> None:
    found = [*of_namespace("t/n", 60, EVICTS, 5), *of_topic("persistent://t/n/x", 30, EVICTS)]
    assert len(found) == 5
    text = str(expiry_error(found))
    for part in (
        "message TTL of namespace t/n is 60 s", "namespaces set-message-ttl t/n --messageTTL 0",
        "namespaces remove-backlog-quota t/n --type destination_storage", "not used for 5 min",
        "topicPolicies remove-message-ttl persistent://t/n/x", "set failOnDataLoss=false",
    ):  # fmt: skip
        assert part in text, part


def test_h13_policies_that_only_block_producers_are_left_alone() -> None:
    holds = {"destination_storage": {"policy": "producer_request_hold"}}
    assert of_namespace("t/n", 0, holds, 0) == of_topic("persistent://t/n/x", None, holds) == []
    assert of_namespace("t/n", None, None, None) == of_topic("persistent://t/n/x", None, "") == []


def test_a_topics_own_quota_overrides_its_namespaces_quota() -> None:
    def quota(size: int) -> dict[str, dict[str, object]]:
        return {"destination_storage": {"limitSize": size, "policy": "producer_request_hold"}}

    assert backlog_limit(None, None) is None
    assert backlog_limit({"message_age": {"limitTime": 60}}, {}) is None
    assert backlog_limit(quota(100), {}) == 100
    assert backlog_limit(quota(100), quota(7)) == 7
    assert backlog_limit(quota(100), quota(-1)) is None, "none of its own, whatever the namespace says"
