"""A flow that failed is started again, and the others go on; one that fails too often ends the job."""

from __future__ import annotations

import traceback
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from bridge.errors import ConfigError, TerminalError, TransientError
from bridge.settings import Settings
from streaming import pipelines as dp
from streaming.failures import Batches, Cause, cause_of
from streaming.job import Job, main
from streaming.pipelines import Flow


class _Waiting(Job):
    """Its server answers at the third try."""

    tries = 0

    def _start(self, flow: Flow, *, available_now: bool = False) -> None:
        self.tries += 1
        if self.tries < 3:
            raise TransientError("the admin does not answer")
        self.queries[flow.name] = []


@pytest.fixture
def job() -> _Waiting:
    def rows() -> Any:
        return None

    with dp.declaring(dp.Pipeline()) as pipeline:
        dp.table(rows, name="t")
    spark: Any = None
    return _Waiting(spark, Settings(), pipeline)


def test_a_flow_whose_server_is_away_when_it_starts_again_waits_for_it(job: _Waiting) -> None:
    with capture_logs() as logs:
        while "t" not in job.queries:
            job._due.clear()
            job._restart("t")
            assert ("t" in job._due) is (job.tries < 3)
    assert job.tries == 3
    assert [line["log_level"] for line in logs] == ["warning", "warning"]


def test_a_part_has_the_flows_of_commands_or_those_into_tables(job: _Waiting) -> None:
    with pytest.raises(ConfigError, match="no flow writes commands — leave --part out"):
        Job(job.spark, job.settings, job.pipeline, part="commands")
    with dp.declaring(job.pipeline):
        dp.commands(job.pipeline.flows["t"].query, name="c")
    for part, flows in (("commands", ["c"]), ("tables", ["t"]), (None, ["t", "c"])):
        assert Job(job.spark, job.settings, job.pipeline, part=part).only == flows  # type: ignore[arg-type]


def test_what_starts_is_logged_before_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.job.logs.configure", lambda _: None)
    monkeypatch.setattr("streaming.job.signal.signal", lambda *_: None)

    def no_java(_: Settings) -> Any:
        raise TerminalError("no Java")

    with capture_logs() as logs:
        assert main(["--only", "bronze"], no_java) == 1
    assert [(line["event"], line.get("flows")) for line in logs] == [
        ("the job starts Spark, and then its flows", "bronze"),
        ("no Java", None),
    ]


def test_a_worker_that_is_late_on_a_busy_machine_ends_no_driver_and_another_failure_that_stays_does(
    job: _Waiting,
) -> None:
    late = cause_of("pyspark.errors.SparkException: Python worker failed to connect back.")
    for _ in range(50):
        job._failed("t", late)
    for _ in range(job.settings.streaming.restart_budget):
        job._failed("t", Cause("the disk is full", terminal=False))
    with pytest.raises(TerminalError, match="t failed: the disk is full"):
        job._failed("t", Cause("the disk is full", terminal=False))


def test_what_cannot_be_helped_ends_the_job_at_once_with_table_batch_and_remedy(job: _Waiting) -> None:
    cause = Cause("too many bad rows", terminal=True, remedy="correct the suite", where=" in batch 7")
    with pytest.raises(TerminalError) as caught:
        job._failed("t", cause)
    assert str(caught.value) == "t failed in batch 7: too many bad rows — correct the suite"


def test_a_server_that_is_away_for_hours_ends_no_job_but_one_that_is_to_end_by_itself(job: _Waiting) -> None:
    away = Cause("the broker does not answer", terminal=False, transient=True)
    for _ in range(5 * job.settings.streaming.restart_budget):
        job._failed("t", away)
    job._available_now, job._failures = True, {}
    for _ in range(job.settings.streaming.restart_budget):
        job._failed("t", away)
    with pytest.raises(TerminalError, match="t failed: the broker does not answer"):
        job._failed("t", away)


def _traceback(raise_it: Any) -> str:
    """Return what Spark has of an error in a batch: its own words and the traceback of Python."""
    try:
        Batches(raise_it)(None, 12)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 whatever is raised
        return f"[STREAM_FAILED] Query [id = 1] terminated with exception:\n{traceback.format_exc()}"
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (TransientError("no answer"), Cause("no answer", False, transient=True, where=" in batch 12")),
        (TerminalError("wrong", remedy="fix"), Cause("wrong", True, "fix", where=" in batch 12")),
        (ValueError("of a user"), Cause("ValueError: of a user", False, where=" in batch 12")),
    ],
)
def test_the_cause_of_a_failed_batch_names_the_batch(error: Exception, cause: Cause) -> None:
    def raise_it(_: object, __: int) -> None:
        raise error

    assert cause_of(_traceback(raise_it)) == cause


def test_an_error_outside_of_a_batch_names_the_batch_before_it() -> None:
    found = cause_of("java.lang.IllegalStateException: x", SimpleNamespace(batchId=3))
    assert found == Cause("java.lang.IllegalStateException: x", False, where=" after batch 3")
