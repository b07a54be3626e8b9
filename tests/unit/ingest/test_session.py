"""What is subscribed after a CONNACK, and when another process has our client id."""

from __future__ import annotations

from bridge.ingest.session import SessionPlan, TakeoverJudge, plan_session, wanted_subscriptions
from bridge.mqtt.types import Disconnected, Subscription

A, B = Subscription("a/#"), Subscription("b/#")
LOST = Disconnected(1, "closed", closed_by_peer=True)


def test_h6_nothing_is_subscribed_when_the_broker_kept_it() -> None:
    assert plan_session((A, B), {"a/#": 1, "b/#": 1}, session_present=True) == SessionPlan((), ())


def test_h6_only_what_changed_is_subscribed() -> None:
    assert plan_session((A, B), {"a/#": 1, "old": 1}, session_present=True) == SessionPlan((B,), ("old",))
    assert plan_session((A,), {"a/#": 0}, session_present=True) == SessionPlan((A,), ())


def test_everything_is_subscribed_without_a_session_or_when_nothing_is_known() -> None:
    assert plan_session((A, B), {"a/#": 1, "x": 1}, session_present=False) == SessionPlan((A, B), ())
    assert plan_session((A, B), None, session_present=True) == SessionPlan((A, B), ())


def test_retained_decides_what_the_broker_is_asked_for() -> None:
    assert [(s.retain_as_published, s.retain_handling) for s in wanted_subscriptions(["a"], 1, "keep")] == [
        (True, 1)
    ]
    assert [(s.retain_as_published, s.retain_handling) for s in wanted_subscriptions(["a"], 1, "mark")] == [
        (False, 1)
    ]
    assert [(s.retain_as_published, s.retain_handling) for s in wanted_subscriptions(["a"], 1, "skip")] == [
        (False, 2)
    ]


def test_mqtt_5_says_that_a_session_was_taken_over() -> None:
    assert TakeoverJudge().lost(Disconnected(1, "taken", reason=0x8E), 0.0)


def test_three_silent_closes_in_a_minute_are_another_process() -> None:
    judge = TakeoverJudge()
    assert [judge.lost(LOST, t) for t in (0.0, 20.0, 59.0)] == [False, False, True]


def test_slow_closes_or_failed_attempts_between_them_are_the_network() -> None:
    judge = TakeoverJudge()
    assert [judge.lost(LOST, t) for t in (0.0, 40.0, 80.0, 120.0)] == [False] * 4
    judge = TakeoverJudge()
    refused = Disconnected(0, "connecting: refused")
    assert [judge.lost(e, 1.0) for e in (LOST, LOST, refused, LOST, LOST)] == [False] * 5
