"""Credit for a broker that counts what former connections left unacknowledged."""

from __future__ import annotations

from bridge.ingest.worker import Credit


def test_a_kept_session_that_stays_silent_gets_twice_the_credit_each_time_later_and_not_for_ever() -> None:
    credit, now, times = Credit(1000), 0.0, []
    for _ in range(20):
        credit.connected(now, session_present=True)
        begin = now
        while not credit.exhausted(now) and now - begin < 10_000:
            now += 1.0
        times.append(now - begin)
    assert times[:4] == [5, 10, 20, 40]
    assert credit.granted == 65_535
    assert times[7:] == [10_000] * 13  # no more is to be had


def test_what_flows_or_is_new_or_gone_is_left_alone() -> None:
    credit = Credit(1000)
    credit.connected(0.0, session_present=False)
    assert not credit.exhausted(1e9)
    credit.connected(0.0, session_present=True)
    credit.ended()
    assert not credit.exhausted(1e9)
    assert credit.granted == 1000
