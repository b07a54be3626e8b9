"""What the listener of the jobs makes of a query's progress, and what Prometheus is shown of it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from bridge.health import Health
from sources.batch_figures import figures_of
from sources.query_progress import QueryProgress
from sources.stream_metrics import StreamMetrics

PROGRESS: dict[str, Any] = {
    "runId": "r1", "name": "gold", "timestamp": "2026-01-02T12:00:00.000Z", "batchId": 7, "numInputRows": 40,
    "durationMs": {"addBatch": 1500, "walCommit": 20, "triggerExecution": 2000},
    "eventTime": {"max": "2026-01-02T11:59:00.000Z", "watermark": "2026-01-02T11:00:00.000Z"},
    "stateOperators": [
        {"numRowsTotal": 3, "memoryUsedBytes": 100, "numRowsDroppedByWatermark": 2},
        {"numRowsTotal": 4, "memoryUsedBytes": 50, "numRowsDroppedByWatermark": 0},
    ],
    "sources": [], "sink": {"description": "ForeachBatchSink", "numOutputRows": -1},
}  # fmt: skip


def progressed(**other: Any) -> Any:
    return SimpleNamespace(progress=SimpleNamespace(json=json.dumps(PROGRESS | other)))


def test_a_progress_is_read_as_spark_writes_it() -> None:
    found = figures_of(PROGRESS)
    assert found == (40, 2.0, {"addBatch": 1.5, "walCommit": 0.02}, 7, 150, 3600.0, 2)
    none_yet = figures_of(PROGRESS | {"eventTime": {"watermark": "1970-01-01T00:00:00.000Z"}})
    assert none_yet.watermark_delay_s is None


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "timestamp": st.none() | st.text(max_size=5) | st.just("2026-01-02T12:00:00.000Z"),
            "numInputRows": st.none() | st.integers(-5, 10**9),
            "durationMs": st.none() | st.dictionaries(st.text(max_size=4), st.integers(-5, 10**9)),
            "eventTime": st.none() | st.dictionaries(st.sampled_from(["watermark", "max"]), st.text(max_size=4)),
            "stateOperators": st.lists(
                st.dictionaries(st.sampled_from(["numRowsTotal", "memoryUsedBytes"]), st.none() | st.integers(-1, 99))
            ),
        },
    )
)
def test_whatever_a_progress_leaves_out_nothing_is_below_zero(progress: dict[str, Any]) -> None:
    found = figures_of(progress)
    assert min(found.rows, found.seconds, found.state_rows, found.state_bytes, found.late) >= 0
    assert all(seconds >= 0 for seconds in found.phases.values())
    assert found.watermark_delay_s is None or found.watermark_delay_s >= 0


def test_a_query_is_shown_from_its_start_to_its_end_and_its_counts_stay() -> None:
    registry = CollectorRegistry()
    now = [0.0]
    metrics = StreamMetrics(registry, lambda: now[0])
    health = Health()
    listener = QueryProgress(metrics, health, ["gold"])

    def missing() -> list[str]:
        return list(health.verdict(0.0).missing.values())

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"pulsebridge_stream_{name}", {"query": "gold", **labels})

    assert missing() == ["starting"]
    listener.onQueryStarted(SimpleNamespace(runId="r1", name="gold"))
    assert missing() == ["its first trigger has not ended"]
    now[0] = 9.0
    assert value("progress_age_seconds") == 9
    listener.onQueryProgress(progressed())
    assert missing() == []
    listener.onQueryProgress(progressed(numInputRows=2))
    metrics.validated("readings", 5, 3)
    assert (value("rows_total"), value("late_rows_total")) == (42, 4)
    validated = {"table": "readings", "result": "bad"}
    assert registry.get_sample_value("pulsebridge_stream_validated_rows_total", validated) == 3
    assert value("phase_seconds_total", phase="addBatch") == 3
    assert value("batch_seconds_sum") == 4
    assert (value("state_rows"), value("state_bytes")) == (7, 150)
    assert value("watermark_delay_seconds") == 3600
    assert value("progress_age_seconds") == 0
    now[0] = 20.0
    listener.onQueryIdle(SimpleNamespace(runId="r1"))
    assert value("progress_age_seconds") == 0

    listener.onQueryStarted(SimpleNamespace(runId="r2", name="gold"))  # started again after a failure
    listener.onQueryTerminated(SimpleNamespace(runId="r1", exception="away"))
    assert value("state_rows") == 7
    listener.onQueryIdle(SimpleNamespace(runId="r2"))
    assert missing() == []
    listener.onQueryTerminated(SimpleNamespace(runId="r2", exception="away"))
    assert missing() == ["it failed"]
    assert (value("state_rows"), value("progress_age_seconds")) == (None, None)
    assert value("rows_total") == 42
