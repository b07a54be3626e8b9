"""Publishes that are not confirmed: bounded in flight, sent again in order after a lost connection."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.mqtt.outbox import Outbox, Outgoing


def outgoing(number: int) -> Outgoing:
    return Outgoing("t", b"%d" % number, 1, False, None, None)


steps = st.lists(st.sampled_from(["put", "send", "send", "confirm", "lose"]), max_size=80)


@settings(deadline=None, max_examples=300)
@given(steps, st.integers(1, 5), st.integers(1, 5))
def test_nothing_is_lost_or_overtaken(events: list[str], window: int, peer: int) -> None:
    outbox = Outbox(window)
    outbox.connected(peer)
    given_ = confirmed = 0
    in_flight: list[tuple[int, int]] = []
    for event in events:
        if event == "put":
            outbox.put(outgoing(given_))
            given_ += 1
        elif event == "send":
            one = outbox.next()
            if one is not None:
                mid = outbox.free_mid()
                assert 0x8000 <= mid <= 0xFFFF
                assert mid not in [known for known, _ in in_flight]
                number = int(one.payload)
                assert number == (in_flight[-1][1] + 1 if in_flight else confirmed)
                in_flight.append((mid, number))
                outbox.sent(mid, one)
        elif event == "confirm" and in_flight:
            answered, number = in_flight.pop(0)
            found = outbox.confirmed(answered, 0x10)
            assert found is not None
            assert (int(found[0].payload), found[1]) == (number, 0x10)
            confirmed += 1
        elif event == "lose":
            outbox.connection_lost()
            in_flight.clear()
        assert len(in_flight) <= min(window, peer)
        assert outbox.unconfirmed == given_ - confirmed


def test_what_is_not_ours_confirms_nothing() -> None:
    outbox = Outbox(10)
    assert outbox.confirmed(7, 0) is None
    assert not outbox.received(7, 0)
    outbox.put(outgoing(1))
    assert outbox.abandon() == 1
    assert outbox.next() is None
