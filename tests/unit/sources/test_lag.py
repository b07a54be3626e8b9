"""The lag counts what a trigger leaves unread, and asks Pulsar no more than it must."""

from __future__ import annotations

from collections.abc import Mapping

from bridge.contract import Position
from sources.lag import Behind, Lag, as_json
from sources.planning import Ledger, PartitionView


class Pulsar:
    """Entry n of each ledger was published at second n; counts how often it is asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Position]] = []
        self.now = 100.0

    def published_ms(self, places: Mapping[str, Position]) -> dict[str, int | None]:
        self.asked.append(dict(places))
        return {name: None if place.ledger == 9 else place.entry * 1000 for name, place in places.items()}


def views(**entries: int) -> dict[str, PartitionView]:
    return {name: PartitionView(name, (Ledger(1, count, 10 * count),)) for name, count in entries.items()}


def test_what_waits_is_counted_and_the_age_is_that_of_its_first_entry() -> None:
    pulsar = Pulsar()
    lag = Lag(pulsar.published_ms, clock=lambda: pulsar.now)
    found = lag.of(views(a=50, b=50), {"a": Position(1, 40), "b": Position(1, 50), "gone": Position(3, 1)})
    assert found == {"a": Behind(10, 100, 60.0), "b": Behind(0, 0, 0.0)}
    assert pulsar.asked == [{"a": Position(1, 40)}], "a partition in step costs no request"
    assert as_json(found)["a"] == {"entries": 10, "bytes": 100, "seconds": 60.0}


def test_pulsar_is_asked_once_a_second_and_the_lag_never_looks_smaller_than_it_is() -> None:
    pulsar = Pulsar()
    lag = Lag(pulsar.published_ms, clock=lambda: pulsar.now)
    lag.of(views(a=99), {"a": Position(1, 10)})
    pulsar.now += 0.5
    assert lag.of(views(a=99), {"a": Position(1, 20)})["a"].seconds == 90.5
    assert len(pulsar.asked) == 1
    pulsar.now += 0.6
    assert lag.of(views(a=99), {"a": Position(1, 20)})["a"].seconds == 81.1
    pulsar.now += 5.0
    assert lag.of(views(a=99), {"a": Position(1, 20)})["a"].seconds == 86.1
    assert len(pulsar.asked) == 2, "the same entry keeps its time"
    assert lag.of(views(a=99), {"a": Position(1, 5)})["a"].seconds == 101.1, "an older one is asked for at once"


def test_an_unreported_age_is_none_and_not_zero() -> None:
    pulsar = Pulsar()
    view = {"a": PartitionView("a", (Ledger(9, 3, 30),))}
    assert Lag(pulsar.published_ms).of(view, {"a": Position(9, 0)})["a"].seconds is None
