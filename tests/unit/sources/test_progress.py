"""What the listener makes of a query's progress."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry

from sources.lag import Behind
from sources.progress import SourceProgress, lag_of

LATEST = {"v": 1, "behind": {"p": {"entries": 3, "bytes": 30, "seconds": None}}}


def progressed(run: str, *sources: Any, name: str | None = "q") -> Any:
    body = {"runId": run, "name": name, "sources": sources}
    return SimpleNamespace(progress=SimpleNamespace(json=json.dumps(body)))


def test_the_lag_is_read_as_spark_writes_it_and_foreign_sources_are_left_alone() -> None:
    wanted = {"p": Behind(3, 30, None)}
    assert lag_of({"latestOffset": LATEST}) == wanted
    assert lag_of({"latestOffset": json.dumps(LATEST)}) == wanted
    for latest in (None, "", "not json", "7", {"topic": {"0": 5}}, {"behind": 3}):
        assert lag_of({"latestOffset": latest}) is None


def test_two_runs_of_one_name_share_a_series_that_stays_until_both_have_ended() -> None:
    registry = CollectorRegistry()
    listener = SourceProgress(registry)
    ours = {"latestOffset": LATEST, "numInputRows": 5}
    listener.onQueryProgress(progressed("a", ours))
    listener.onQueryProgress(progressed("b", ours, {"latestOffset": None, "numInputRows": 9}))
    listener.onQueryProgress(progressed("c", {"latestOffset": {"0": 1}, "numInputRows": 9}, name="kafka"))

    def value(name: str, query: str = "q") -> float | None:
        return registry.get_sample_value(f"pulsebridge_source_{name}", {"query": query})

    assert value("rows_total") == 10
    assert value("behind_bytes") == 30
    assert value("rows_total", "kafka") is None, "a query of other sources is not ours"
    listener.onQueryTerminated(SimpleNamespace(runId="a"))
    assert value("behind_bytes") == 30
    listener.onQueryTerminated(SimpleNamespace(runId="b"))
    assert value("behind_bytes") is None
    assert value("rows_total") == 10
