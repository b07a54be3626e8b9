"""PINGREQ, and when a silent connection is dead."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from bridge.backoff import backoff_s
from bridge.mqtt.keepalive import KeepAlive


def opened(interval: float = 10.0) -> KeepAlive:
    keepalive = KeepAlive(interval)
    keepalive.opened(100.0, interval)
    return keepalive


def test_a_ping_goes_after_half_the_interval_without_sending() -> None:
    keepalive = opened()
    assert not keepalive.ping_due(104.9)
    assert keepalive.ping_due(105.0)
    keepalive.sent(105.0)
    assert keepalive.next_in(106.0) == 4.0


def test_a_ping_goes_although_we_send_when_the_broker_is_silent() -> None:
    keepalive = opened()
    keepalive.sent(104.0)
    assert keepalive.ping_due(105.0)
    keepalive.pinged(105.0)
    assert not keepalive.ping_due(106.0)


def test_no_answer_for_an_interval_is_dead() -> None:
    keepalive = opened()
    keepalive.pinged(105.0)
    assert not keepalive.dead(114.9)
    assert keepalive.dead(115.0)


def test_any_bytes_are_a_sign_of_life() -> None:
    keepalive = opened()
    keepalive.pinged(105.0)
    keepalive.received(114.0)
    assert not keepalive.dead(200.0)


def test_h3_silence_is_not_evaluated_while_we_do_not_read() -> None:
    keepalive = opened()
    keepalive.pinged(105.0)
    for second in range(106, 400):
        keepalive.note_reading(float(second), caught_up=False)
        assert not keepalive.dead(float(second))
        if keepalive.ping_due(float(second)):
            keepalive.pinged(float(second))
    # Reading goes on at 400: an interval to find the answer, and one more for what TCP sends again after its own wait.
    assert not keepalive.dead(418.0)
    assert keepalive.dead(419.0)


@given(st.floats(0.0, 1e4), st.floats(0.0, 1e4), st.floats(0.0, 0.99))
def test_h3_after_a_time_without_reading_an_answer_may_be_late_by_as_much(
    unread: float, slow: float, share: float
) -> None:
    """But by one interval at most; and once bytes came, the interval alone counts again."""
    keepalive = opened()
    begin = 100.0 + unread
    keepalive.note_reading(begin, caught_up=False)
    keepalive.pinged(begin)
    patience = 10.0 + min(unread, 10.0)
    assert not keepalive.dead(begin + share * patience)
    assert keepalive.dead(begin + patience + 1e-6)
    received = begin + patience + slow
    keepalive.received(received)
    assert not keepalive.dead(received + 1e6)
    keepalive.pinged(received)
    assert not keepalive.dead(received + share * 10.0)
    assert keepalive.dead(received + 10.0 + 1e-6)


def test_h3_pings_go_on_while_we_do_not_read() -> None:
    keepalive = opened()
    pings = []
    for second in range(101, 160):
        keepalive.note_reading(float(second), caught_up=False)
        if keepalive.ping_due(float(second)):
            keepalive.pinged(float(second))
            pings.append(second)
    assert all(b - a <= 5 for a, b in itertools.pairwise(pings))


def test_without_a_keep_alive_no_ping_is_sent_and_silence_is_not_evaluated() -> None:
    keepalive = opened(0.0)
    assert not keepalive.ping_due(1e6)
    assert not keepalive.dead(1e6)


@given(st.integers(0, 10_000), st.floats(0.0, 1.0))
def test_the_backoff_is_bounded_and_jittered(attempt: int, chance: float) -> None:
    wait = backoff_s(attempt, 0.2, 15.0, chance)
    assert 0.1 <= wait <= 15.0
