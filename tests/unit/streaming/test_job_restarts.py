"""A query that cannot start yet is tried again, and the others go on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from streaming.stopping import StopRequest
from structlog.testing import capture_logs

from bridge.errors import TerminalError, TransientError
from bridge.settings import Settings
from streaming.job import Cause, Job, plan_of


class _Waiting(Job):
    """Its server answers at the third try."""

    tries = 0

    def _start(self, name: str, *, once: bool = False) -> None:
        self.tries += 1
        if self.tries < 3:
            raise TransientError("the admin does not answer")
        self.queries.append(name)  # type: ignore[arg-type]


def test_a_query_whose_server_is_away_when_it_starts_again_waits_for_it() -> None:
    spark: Any = None
    job = _Waiting(spark, plan_of(Settings()), only=("bronze",))
    job._paused.append("bronze")
    with capture_logs() as logs:
        for _ in range(4):
            job._held(StopRequest())
    assert (job.tries, job.queries, job._paused) == (3, ["bronze"], [])
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == [
        "query cannot start again yet, it is tried until it can"
    ]


def test_a_worker_that_is_late_on_a_busy_machine_ends_no_driver_and_another_failure_that_stays_does() -> None:
    spark: Any = None
    job = _Waiting(spark, plan_of(Settings()), only=("bronze",))
    query: Any = SimpleNamespace(name="bronze")

    def fails(text: str, times: int) -> None:
        for _ in range(times):
            job.queries, job.tries = [query], 2
            job._again(query, Cause(text, terminal=False))

    fails("Python worker failed to connect back.", 20)
    fails("the disk is full", 5)
    with pytest.raises(TerminalError, match="query bronze failed: the disk is full"):
        fails("the disk is full", 1)
