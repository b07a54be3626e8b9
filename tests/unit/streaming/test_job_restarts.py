"""A query that cannot start yet is tried again, and the others go on."""

from __future__ import annotations

from typing import Any

from structlog.testing import capture_logs

from bridge.errors import TransientError
from bridge.settings import Settings
from streaming.job import Job, plan_of


class _Waiting(Job):
    """Its server answers at the third try."""

    tries = 0

    def _start(self, name: str) -> None:
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
            job._held()
    assert (job.tries, job.queries, job._paused) == (3, ["bronze"], [])
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == [
        "query cannot start again yet, it is tried until it can"
    ]
