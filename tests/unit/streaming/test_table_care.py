from __future__ import annotations

from datetime import date, datetime, timedelta, timezone

import pytest
import typer
from typer.testing import CliRunner

from bridge.errors import ConfigError
from bridge.settings import StreamingSettings
from streaming import care, tables_commands, tables_job
from streaming.following import Followed
from streaming.rebuild import Span
from streaming.remains import kept_for
from streaming.standing import Commit
from streaming.tables import Tables

NOW = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


def test_a_span_is_utc_unless_it_says_otherwise() -> None:
    span = Span.parse("2026-01-01", "2026-01-02T01:00:00+01:00")
    assert span.begin == datetime(2026, 1, 1, tzinfo=timezone.utc)
    assert span.end - span.begin == timedelta(days=1)


def test_a_span_touches_the_days_up_to_the_moment_before_its_end() -> None:
    days = Span.parse("2026-01-31T23:00", "2026-02-02").days
    assert [day.isoformat() for day in days] == ["2026-01-31", "2026-02-01"]
    assert len(Span.parse("2026-02-02", "2026-02-02T00:00:00.000001").days) == 1


def test_commits_that_streams_pass_over_are_told_from_those_that_bring_readings() -> None:
    def of(operation: str, mark: str | None = None) -> tuple[bool, bool]:
        commit = Commit(1, operation, mark)
        return care.is_care(commit), care.is_streamed(commit)

    assert of("MERGE") == of("WRITE") == of("STREAMING UPDATE") == (False, True)
    assert of("MERGE", "pulsebridge care") == of("DELETE") == (True, False)
    assert of("OPTIMIZE") == of("SET TBLPROPERTIES") == (False, False)
    assert of("MERGE", "somebody's own") == (False, True)


def test_what_was_recomputed_is_told_by_table() -> None:
    done = Followed((date(2026, 1, 1),), {"gold": 3, "late": 1})
    assert done.lines == [
        "gold: recomputed from silver for 1 day of event time, 3 rows differed",
        "late: recomputed from silver for 1 day of event time, 1 rows differed",
    ]


@pytest.mark.parametrize(
    ("begin", "end", "text"),
    [("yesterday", "2026-01-01", "--from"), ("2026-01-01", "2026-01-01", "not before")],
)
def test_what_is_no_span_is_refused(begin: str, end: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Span.parse(begin, end)


def test_what_pulsar_keeps_is_told_with_its_end() -> None:
    def policies(minutes: int, size: int) -> dict[str, object]:
        return {"retention_policies": {"retentionTimeInMinutes": minutes, "retentionSizeInMB": size}}

    assert "until 2026-03-04 12:00 UTC, and up to 4 hours" in kept_for(policies(4320, -1), NOW)
    assert "or until a topic has 100 MB" in kept_for(policies(60, 100), NOW)
    assert "for ever" in kept_for(policies(-1, -1), NOW)
    assert kept_for({}, NOW) == kept_for(policies(0, -1), NOW) == "goes once every subscription has read it"


def test_every_table_of_the_settings_is_gone_over_bronze_first() -> None:
    assert list(Tables.of(StreamingSettings()).named())[:3] == ["bronze", "silver", "quarantine"]


def test_forget_asks_and_does_nothing_without_a_yes() -> None:
    app = typer.Typer()
    tables_commands.register(app)
    answer = CliRunner().invoke(app, ["tables", "forget", "band-17"], input="n\n")
    assert answer.exit_code == 1
    assert "band-17 for good?" in answer.output


def test_a_span_that_is_none_ends_the_job_before_spark_is_started(capsys: pytest.CaptureFixture[str]) -> None:
    assert tables_job.main(["rebuild", "gold", "--from", "2026-01-02", "--to", "2026-01-01"]) == 1
    assert "--from 2026-01-02 is not before --to 2026-01-01" in "".join(capsys.readouterr())
