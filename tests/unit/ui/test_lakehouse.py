"""What the pages show of real Delta tables, written without Spark."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.errors import TransientError
from bridge.settings import StreamingSettings
from pulsebridge.ui.lakehouse import Lakehouse, device_readings, lakehouse_problem, sql_text
from tests.support.ui import HOSTILE, QUOTED, alert, now, reading_rows, verdict, write, write_lakehouse


def us(moment: datetime) -> int:
    return round(moment.timestamp() * 1e6)


def test_the_last_reading_of_each_device_and_the_last_verdicts_are_found(tmp_path: Path) -> None:
    write_lakehouse(tmp_path, 100)
    tables = Lakehouse(StreamingSettings(root=str(tmp_path)), 1000).read()
    assert len(tables.latest) == 100
    assert tables.latest["press-5"][1] == "temperature 20.5"
    assert [(row["rule"], row["success"]) for row in tables.verdicts] == [
        ("temperature in range", False),
        ("device is named", True),
    ]
    assert {row["device"] for row in tables.alerts if row["open"]} == {
        HOSTILE,
        *(f"press-{n}" for n in range(100, 220)),
    }
    assert tables.missing == ()


def test_new_rows_replace_old_ones_and_the_number_of_devices_is_bounded(tmp_path: Path) -> None:
    end = now()
    write(tmp_path, "readings", [row for n in range(5) for row in reading_rows(f"d{n}", 3, end)])
    lakehouse = Lakehouse(StreamingSettings(root=str(tmp_path)), 4)
    assert len(lakehouse.read().latest) == 4
    later = reading_rows("d0", 1, end + timedelta(minutes=5)) + reading_rows("d0", 1, end - timedelta(hours=2))
    write(tmp_path, "readings", [{**row, "value": 7.0} for row in later])
    found = lakehouse.read()
    assert found.latest["d0"] == (us(end + timedelta(minutes=4)), "temperature 7")
    assert found.missing == ("alerts", "quality_results")


def test_a_table_that_is_deleted_or_broken_is_named(tmp_path: Path) -> None:
    write(tmp_path, "alerts", [alert("r", "raised", "d", now(), "m")])
    lakehouse = Lakehouse(StreamingSettings(root=str(tmp_path)), 4)
    assert len(lakehouse.read().alerts) == 1
    write(tmp_path, "alerts", [alert("r", "raised", "d", now() + timedelta(seconds=1), "m")])
    for file in (tmp_path / "alerts").glob("*.parquet"):
        file.write_bytes(b"no parquet")
    with pytest.raises(TransientError, match="cannot be read"):
        lakehouse.read()


def test_only_readings_of_the_device_in_the_time_are_read(tmp_path: Path) -> None:
    end = now()
    write(tmp_path, "readings", reading_rows(QUOTED, 90, end) + reading_rows("other", 90, end))
    one_hour = us(end - timedelta(minutes=60))
    found = device_readings(StreamingSettings(root=str(tmp_path)), QUOTED, one_hour)
    assert [one.us for one in found] == [us(end - timedelta(minutes=60 - n)) for n in range(60)]
    assert device_readings(StreamingSettings(root=str(tmp_path)), "x' OR '1'='1", one_hour) == []


@settings(max_examples=8)
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20))
def test_any_name_finds_its_own_rows_alone(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    root = tmp_path_factory.mktemp("lakehouse")
    end = now()
    write(root, "readings", reading_rows(name, 1, end) + reading_rows(name + "x", 2, end))
    since = time.time_ns() // 1000 - 3_600_000_000
    assert len(device_readings(StreamingSettings(root=str(root)), name, since)) == 1


def test_quotes_are_doubled() -> None:
    assert sql_text("it's \\") == "'it''s \\'"


def test_tables_that_cannot_be_shown_are_one_line(tmp_path: Path) -> None:
    assert "streaming.root" in lakehouse_problem(StreamingSettings(root=str(tmp_path / "none")))
    assert "schema main.plant" in lakehouse_problem(StreamingSettings(schema_name="main.plant"))
    assert lakehouse_problem(StreamingSettings(root=str(tmp_path))) == ""
    assert lakehouse_problem(StreamingSettings(root="s3://bucket/lake")) == ""


def test_a_verdict_of_an_older_run_does_not_hide_a_newer_one(tmp_path: Path) -> None:
    write(tmp_path, "quality_results", [verdict("r", False, now()), verdict("r", True, now() - timedelta(days=1))])
    (row,) = Lakehouse(StreamingSettings(root=str(tmp_path)), 4).read().verdicts
    assert row["success"] is False
