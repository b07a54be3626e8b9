"""Figures of one micro-batch, read from Spark's progress for ``sources.query_progress``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from sources.stream_metrics import Figures

__all__ = ["figures_of"]

_ALL: Final = "triggerExecution"


def figures_of(progress: Mapping[str, Any]) -> Figures:
    """Read a progress in Spark's JSON form; a missing figure is 0 or None."""
    began = _seconds(progress.get("timestamp"))
    phases = {str(k): max(0.0, float(v) / 1000) for k, v in (progress.get("durationMs") or {}).items()}
    seconds = phases.pop(_ALL, 0.0)
    watermark = _seconds((progress.get("eventTime") or {}).get("watermark"))
    operators = progress.get("stateOperators") or ()
    return Figures(
        rows=max(0, int(progress.get("numInputRows") or 0)),
        seconds=seconds,
        phases=phases,
        state_rows=_sum(operators, "numRowsTotal"),
        state_bytes=_sum(operators, "memoryUsedBytes"),
        # Before the first row the watermark is the epoch.
        watermark_delay_s=None if not watermark or began is None else max(0.0, began - watermark),
        late=_sum(operators, "numRowsDroppedByWatermark"),
    )


def _sum(operators: Any, name: str) -> int:
    return sum(max(0, int(of.get(name) or 0)) for of in operators)


def _seconds(text: Any) -> float | None:
    if not isinstance(text, str):
        return None
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None
