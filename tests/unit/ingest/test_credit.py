"""Credit for a broker that counts what former connections left unacknowledged."""

from __future__ import annotations

from unittest.mock import Mock, patch

from bridge.ingest import worker
from bridge.ingest.session_filters import SessionFilters
from bridge.ingest.worker import Credit, IngestWorker
from bridge.mqtt.types import Connected, Subscription
from bridge.settings import Settings


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


def test_a_connection_for_more_credit_is_not_counted_as_a_reconnect() -> None:
    """A silent link replaces its connection several times after a start, and PulsebridgeLinkFlaps would fire."""
    link = Mock(client_id="a", connected=True, paused=False)
    with patch.object(worker, "Link", return_value=link):
        ingest = IngestWorker(
            Settings(),
            lambda **_settings: Mock(in_flight=0),
            name="silent",
            part=Mock(),
            filters=SessionFilters((Subscription("a/#"),), None, optional=None, remember=Mock()),
        )
    ingest.ready = True
    counted = ingest._metrics.connections._value
    ingest.on_connected(Connected(epoch=1, session_present=True))
    ingest.on_turn(1e9)
    link.disconnect.assert_called_once()
    ingest.on_connected(Connected(epoch=2, session_present=True))
    assert counted.get() == 1
    ingest.on_connected(Connected(epoch=3, session_present=True))  # after a loss
    assert counted.get() == 2
