"""What is subscribed after a CONNACK."""

from __future__ import annotations

from bridge.ingest.session_filters import SessionFilters, wanted_subscriptions
from bridge.mqtt.types import Subscription
from bridge.settings.ingest import IngestSettings
from bridge.settings.mqtt import MqttSettings

A, B = Subscription("a/#"), Subscription("b/#")


def plan(
    wanted: tuple[Subscription, ...], granted: dict[str, int] | None, *, session_present: bool
) -> tuple[tuple[Subscription, ...], tuple[str, ...]]:
    filters = SessionFilters(wanted, granted, optional=None, remember=lambda _granted: None)
    return filters.connected(session_present=session_present)


def test_h6_nothing_is_subscribed_when_the_broker_kept_it() -> None:
    assert plan((A, B), {"a/#": 1, "b/#": 1}, session_present=True) == ((), ())


def test_h6_only_what_changed_is_subscribed() -> None:
    assert plan((A, B), {"a/#": 1, "old": 1}, session_present=True) == ((B,), ("old",))
    assert plan((A,), {"a/#": 0}, session_present=True) == ((A,), ())


def test_everything_is_subscribed_without_a_session_or_when_nothing_is_known() -> None:
    assert plan((A, B), {"a/#": 1, "x": 1}, session_present=False) == ((A, B), ())
    assert plan((A, B), None, session_present=True) == ((A, B), ())


def test_retained_decides_what_the_broker_is_asked_for() -> None:
    for retained, expected in (("keep", (True, 1)), ("mark", (False, 1)), ("skip", (False, 2))):
        (found,) = wanted_subscriptions(["a"], IngestSettings.model_validate({"retained": retained}))
        assert (found.retain_as_published, found.retain_handling) == expected


def test_h6_a_new_session_without_suback_is_subscribed_on_the_next_connection() -> None:
    stored: list[dict[str, int]] = []
    filters = SessionFilters((A, B), {"a/#": 1, "b/#": 1}, optional=None, remember=stored.append)
    assert filters.connected(session_present=False) == ((A, B), ())
    assert filters.connected(session_present=True) == ((A, B), ()), "the connection ended before SUBACK"
    restarted = SessionFilters((A, B), stored[-1], optional=None, remember=stored.append)
    assert restarted.connected(session_present=True) == ((A, B), ()), "the process ended before SUBACK"
    filters.subscribed([1, 1], MqttSettings(), "us")
    assert filters.connected(session_present=True) == ((), ())


def test_h6_after_a_connect_without_connack_all_is_subscribed_and_former_filters_are_left() -> None:
    filters = SessionFilters((A, B), {"a/#": 1, "b/#": 1, "old": 1}, optional=None, remember=lambda _granted: None)
    filters.doubt()
    assert filters.connected(session_present=True) == ((A, B), ("old",))
    filters.subscribed([1, 1], MqttSettings(), "us")
    assert filters.connected(session_present=True) == ((), ())
