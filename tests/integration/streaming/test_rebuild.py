"""Silver rebuilt from bronze on real Delta: beside rows that arrive, without a command."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bridge.errors import TerminalError
from streaming.quarantine.replay import Replay
from streaming.quarantine.selection import Selection
from streaming.rebuild import Change, Rebuild, Span
from streaming.tables import SILVER_COLUMNS
from tests.support.bronze_rows import ARRIVAL, reading
from tests.support.lakehouse import Lakehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DAY = Span(ARRIVAL, ARRIVAL + timedelta(days=1))
LATER = ARRIVAL + timedelta(days=1)


def rebuilt(
    house: Lakehouse, least: float, after: Callable[[str], object] = lambda step: None, **flags: Any
) -> dict[str, Change]:
    return Rebuild(house.spark, house.tables, house.recipe(least), DAY, after).run(**flags)


def kinds(changes: dict[str, Change]) -> dict[str, dict[str, int]]:
    return {name: dict(change.counts) for name, change in changes.items()}


@pytest.mark.long
def test_h19_a_span_is_judged_anew_once_and_no_command_comes_of_it_or_of_a_replay(
    spark: SparkSession, tmp_path: Path
) -> None:
    house = Lakehouse(spark, tmp_path)
    with pytest.raises(TerminalError, match="has not finished a batch"):
        rebuilt(house, 0)
    house.arrive(
        reading(1, "a", 1, 100),
        reading(2, "a", 2, 5),  # under the least of the shipped suite, and a command when it is let through
        reading(3, "b", 1, 60),  # a command; goes when the least is 65
        reading(4, "b", 2, 200),
        reading(5, "c", 1, 5, arrival=LATER),  # not of the span
        reading(6, "b", 1, 60),  # delivered twice
    )
    house.catch_up()
    assert house.commanded == ["b-1"]
    # One in bronze that the query has yet to read: it is the query's.
    house.arrive(reading(7, "a", 3, 5))
    before = house.ids("silver"), house.ids("quarantine")

    found = kinds(rebuilt(house, 0, dry_run=True))
    assert found == {"silver": {"same": 3, "added": 1}, "quarantine": {"removed": 1}}
    assert (house.ids("silver"), house.ids("quarantine")) == before == (["a-1", "b-1", "b-2"], ["a-2", "c-1"])

    assert kinds(rebuilt(house, 0)) == found
    assert house.ids("silver") == ["a-1", "a-2", "b-1", "b-2"]
    assert house.ids("quarantine") == ["c-1"]
    house.catch_up()
    assert house.ids("quarantine") == ["a-3", "c-1"]
    assert house.commanded == ["b-1"], "a commit that only adds is no new reading"

    rebuilt(house, 65)  # rows are taken out of silver: the readers of its stream go on
    assert house.ids("silver") == ["a-1", "b-2"]
    assert house.ids("quarantine") == ["a-2", "a-3", "b-1", "b-1", "c-1"], "quarantine keeps each message"
    Replay(spark, house.tables, house.recipe(0)).run(Selection(device="a"))  # old news, too
    house.arrive(reading(8, "b", 3, 50))
    house.catch_up()
    assert house.commanded == ["b-1", "b-3"]
    rows = house.tables.silver.read(spark).select("reading_id", "rebuilt_at").collect()
    by_the_query = {r[0]: r[1] is None for r in rows}
    assert by_the_query == {"a-1": True, "a-2": False, "a-3": False, "b-2": True, "b-3": True}


@pytest.mark.long
def test_rows_that_the_query_adds_meanwhile_are_neither_lost_nor_doubled(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Between the comparison and the swap the query takes more of the span, one of them a reading that is let in."""
    house = Lakehouse(spark, tmp_path)
    # columns that the table's owner added, named like what a rebuild keeps of a row
    spark.sql(f"ALTER TABLE {house.tables.silver.sql} ADD COLUMNS (at STRING, kind STRING, identity STRING)")
    house.arrive(reading(1, "a", 1, 100), reading(2, "a", 2, 5), reading(3, "a", 3, 7))
    house.catch_up()

    def meanwhile(step: str) -> None:
        if step == "judged":
            house.arrive(reading(4, "a", 2, 90), reading(5, "a", 4, 80), reading(6, "a", 5, 3))
            house.silver().awaitTermination()

    rebuilt(house, 0, meanwhile)
    assert house.ids("silver") == ["a-1", "a-2", "a-3", "a-4"]
    assert house.ids("quarantine") == ["a-5"]
    rows = house.tables.silver.read(spark).select("reading_id", "value").collect()
    assert {r[0]: r[1] for r in rows} == {"a-1": 100.0, "a-2": 90.0, "a-3": 7.0, "a-4": 80.0}
    stored = house.tables.silver.read(spark)
    assert all(c.name in stored.columns for c in SILVER_COLUMNS)
    assert stored.where("coalesce(at, kind, identity) IS NOT NULL").isEmpty()


@pytest.mark.long
def test_a_row_of_quarantine_whose_day_changes_is_changed_where_it_is(
    spark: SparkSession, tmp_path: Path
) -> None:
    house = Lakehouse(spark, tmp_path)
    house.arrive(reading(1, "a", 1, 5), reading(2, "a", 2, 100))
    house.catch_up()
    recipe = house.recipe()
    timeless = recipe | {"readings": [one | {"time": "$.nothing"} for one in recipe["readings"]]}

    def days() -> list[bool]:
        rows = house.tables.quarantine.read(spark).orderBy("entry_id").select("event_day").collect()
        return [row[0] is None for row in rows]

    for used, expected in ((timeless, [True, True]), (recipe, [False])):
        Rebuild(spark, house.tables, used, DAY).run()
        assert days() == expected
        again = kinds(Rebuild(spark, house.tables, used, DAY).run())
        assert {kind for counts in again.values() for kind in counts} == {"same"}
