"""The result of a benchmark: one figure, its unit, and its reference."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

__all__ = ["Figure", "percentile", "show", "write"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value. ``unit`` is one of ms, 1/s, µs, bytes, bytes/s, batches, share; the reference may be missing."""

    name: str
    value: float
    unit: str
    reference: str | None = None
    reference_value: float | None = None

    @property
    def ratio(self) -> float | None:
        """The value as a multiple of the reference, None without one."""
        if not self.reference_value:
            return None
        return self.value / self.reference_value


def percentile(values: Iterable[float], share: float) -> float:
    """Return the nearest-rank percentile. Raises ValueError when there are no values."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values to take a percentile of")
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def show(figures: list[Figure], left_out: list[str]) -> None:
    """Print the table, and what was not measured and why."""
    table = Table("figure", "value", "unit", "beside", "its value", "ratio")
    for f in figures:
        table.add_row(
            f.name,
            f"{f.value:,.1f}",
            f.unit,
            f.reference or "",
            "" if f.reference_value is None else f"{f.reference_value:,.1f}",
            "" if f.ratio is None else f"{f.ratio:.2f}",
        )
    console = Console()
    console.print(table)
    for line in left_out:
        console.print(f"left out: {line}", markup=False)


def write(figures: list[Figure], path: Path) -> None:
    """Write the figures as JSON, a list of objects."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [asdict(f) | {"ratio": f.ratio} for f in figures]
    path.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
