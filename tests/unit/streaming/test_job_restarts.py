"""A flow that failed is started again, and the others go on; one that fails too often ends the job."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from bridge.errors import TerminalError, TransientError
from bridge.settings import Settings
from streaming import pipelines as dp
from streaming.failures import Cause
from streaming.job import Job
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
            job._again("t")
            assert ("t" in job._due) is (job.tries < 3)
    assert job.tries == 3
    assert [line["log_level"] for line in logs] == ["warning", "warning"]


def test_a_worker_that_is_late_on_a_busy_machine_ends_no_driver_and_another_failure_that_stays_does(
    job: _Waiting,
) -> None:
    for _ in range(50):
        job._failed("t", Cause("Python worker failed to connect back.", terminal=False, free=True))
    for _ in range(job.settings.streaming.restart_budget):
        job._failed("t", Cause("the disk is full", terminal=False))
    with pytest.raises(TerminalError, match="t failed: the disk is full"):
        job._failed("t", Cause("the disk is full", terminal=False))


def test_what_cannot_be_helped_ends_the_job_at_once(job: _Waiting) -> None:
    with pytest.raises(TerminalError, match="t failed: too many bad rows"):
        job._failed("t", Cause("too many bad rows", terminal=True))
