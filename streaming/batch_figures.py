"""What a micro-batch was, read from the progress that Spark makes of it; and what Spark is asked to note for that.

Pure but for ``observed``; the listener that reads each progress is ``streaming.query_progress``.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from bridge.stream_metrics import Figures

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["figures_of", "observed"]

_OBSERVED: Final = "pulsebridge"
_OLDEST: Final = "oldest_us"
_ALL: Final = "triggerExecution"


def observed(rows: DataFrame, stored_at: str) -> DataFrame:
    """Have the progress of the query of these rows say when the oldest of a batch was stored, by that column."""
    from pyspark.sql import functions as F

    return rows.observe(_OBSERVED, F.min(F.unix_micros(stored_at)).alias(_OLDEST))


def figures_of(progress: Mapping[str, Any]) -> Figures:
    """Read a progress as Spark writes it in JSON; what it does not say is 0 or None."""
    began = _seconds(progress.get("timestamp"))
    phases = {str(k): max(0.0, float(v) / 1000) for k, v in (progress.get("durationMs") or {}).items()}
    seconds = phases.pop(_ALL, 0.0)
    oldest = ((progress.get("observedMetrics") or {}).get(_OBSERVED) or {}).get(_OLDEST)
    watermark = _seconds((progress.get("eventTime") or {}).get("watermark"))
    operators = progress.get("stateOperators") or ()
    rows = max(0, int(progress.get("numInputRows") or 0))
    return Figures(
        rows=rows,
        written=_written(progress.get("sink") or {}, rows),
        seconds=seconds,
        phases=phases,
        behind_s=None if oldest is None or began is None else max(0.0, began + seconds - oldest / 1e6),
        state_rows=_sum(operators, "numRowsTotal"),
        state_bytes=_sum(operators, "memoryUsedBytes"),
        # Without a reading yet the watermark stands at the epoch.
        watermark_delay_s=None if not watermark or began is None else max(0.0, began - watermark),
        late=_sum(operators, "numRowsDroppedByWatermark"),
    )


def _written(sink: Mapping[str, Any], rows: int) -> int | None:
    if str(sink.get("description") or "").startswith("DeltaSink"):
        return rows  # it appends them all, and does not say so
    count = int(sink.get("numOutputRows") or 0)
    return None if count < 0 else count


def _sum(operators: Any, name: str) -> int:
    return sum(max(0, int(of.get(name) or 0)) for of in operators)


def _seconds(text: Any) -> float | None:
    if not isinstance(text, str):
        return None
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None
