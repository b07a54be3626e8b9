"""What small runs predict of a large one, and how far that was off.

Two small runs give a line. The CPU of messages does not grow along a line: the more there are, the more of them share a
batch and a wake-up. So it is predicted by the line through the logarithms. Sockets stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from typing import Any, Final

__all__ = ["FIGURES", "compare", "of", "with_parked"]

Result = Mapping[str, float]

FIGURES: Final[dict[str, tuple[str, ...]]] = {
    "memory": ("peak_bytes", "reading_cpu_s", "restoring_cpu_s"),
    "known": (
        "peak_bytes_known",
        "peak_bytes_parked",
        "bytes_after_parking",
        "takeover_known_cpu_s",
        "takeover_compacted_cpu_s",
        "park_cpu_s",
        "cursors_bytes",
        "compacted_bytes",
        "compaction_cpu_s",
    ),
    "connected": (
        "traffic_ingest_bytes",
        "traffic_push_bytes",
        "traffic_mosquitto_bytes",
        "traffic_ingest_sockets",
        "traffic_push_sockets",
        "traffic_ingest_cpu_s",
        "traffic_push_cpu_s",
        "traffic_mosquitto_cpu_s",
        "stored_bytes",
    ),
}
"""Figures that grow with the number of devices, or stay as they are."""
_AGREES: Final = 0.3
_BY: Final = {"memory": "known", "known": "known", "connected": "devices"}


def of(group: str, small: Sequence[Result], devices: int) -> dict[str, float]:
    """Return the figures of a run with so many devices, from two small runs; none decreases."""
    first, second = small
    by = _BY[group]
    share = (devices - first[by]) / (second[by] - first[by])
    power = log(devices / first[by]) / log(second[by] / first[by])
    found = {}
    for name in FIGURES[group]:
        more = max(first[name], second[name])
        if group == "connected" and name.endswith("_cpu_s"):
            found[name] = first[name] * (more / first[name]) ** power
        elif name.endswith("_sockets"):
            found[name] = more
        else:
            found[name] = first[name] + (more - first[name]) * share
    return found


def with_parked(push: Sequence[Result], core: Mapping[str, Any]) -> float:
    """Return the memory of push with parked devices: of small runs the receive buffers of Pulsar's client hide it, so it is
    that of push without devices, and what the group ``memory`` predicts of the core alone.
    """
    return push[-1]["bytes_empty"] + float(core["predicted"]["peak_bytes"] - core["small"][-1]["bytes_before"])


def compare(predicted: Result, measured: Result) -> list[dict[str, object]]:
    """Return for each figure the prediction, the measurement, and whether they agree within 30 %."""
    return [
        {
            "figure": name,
            "predicted": value,
            "measured": measured[name],
            "ratio": measured[name] / value if value else float("inf"),
            "within_30_percent": abs(measured[name] - value) <= _AGREES * measured[name],
        }
        for name, value in predicted.items()
        if name in measured
    ]
