"""The results of the soak in ``results.json``, and their section of docs/explain/crashes.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

__all__ = ["RESULTS", "load", "section", "store"]

RESULTS: Final = Path(__file__).with_name("results.json")
_HEAD: Final = """## Soak

`make soak HOURS=2` runs devices, ingest, push and tables under a bounded load, with random faults. Ingest, push and the
Spark driver are killed in the first quarter of a piece, the warm-up. Later they live, so that growth would show: servers
are killed, connections are cut and processes stand still. A piece continues with the data of the piece before it. It
passes if no message is missing or out of order and no measured value grows after the warm-up.
"""
_UNITS: Final = {"memory": 2**20, "disk": 2**20}


def load() -> list[dict[str, Any]]:
    """Return the results of all pieces, in order."""
    return list(json.loads(RESULTS.read_text("utf-8"))) if RESULTS.exists() else []


def store(pieces: Sequence[Mapping[str, Any]]) -> None:
    """Write the results of all pieces."""
    lines = ",\n".join(json.dumps(piece) for piece in pieces)
    RESULTS.write_text(f"[\n{lines}\n]\n", "utf-8")


def section(pieces: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of the section, none before the first piece."""
    if not pieces:
        return []
    lines = [_HEAD, _row(["hours", "result", "readings", "commands", "repeats", "faults", "seed", "commit", "machine"])]
    lines.append(_row(["---"] * 9))
    for one in pieces:
        faults = ", ".join(f"{count} × {name}" for name, count in one["kills"].items())
        counts = [f"{one[name]:,}" for name in ("readings", "commands", "repeats")]
        lines.append(
            _row([f"{one['hours']:g}", one["result"], *counts, faults, str(one["seed"]), one["commit"], one["machine"]])
        )
    lines += ["", "Medians at the begin and at the end of the last piece, after its warm-up:", ""]
    lines += [_row(["value", "begin", "end", "unit"]), _row(["---"] * 4)]
    for name, (first, last) in pieces[-1]["medians"].items():
        scale = _UNITS.get(name.partition(" ")[0], 1)
        lines.append(_row([name.replace("_", " "), f"{first / scale:,.3g}", f"{last / scale:,.3g}", _unit(name)]))
    return lines


def _unit(name: str) -> str:
    kind = name.partition(" ")[0]
    units = {"memory": "MiB", "disk": "MiB", "disk_per_message": "bytes", "lag": "messages", "latency": "s"}
    return units.get(kind, "")


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
