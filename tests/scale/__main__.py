"""Measure 100,000 connected and a million known devices, and size a fleet: ``python -m tests.scale``.

First come small runs. What they predict of the large ones is written to ``build/scale.json`` before these begin; behind them
stand the figures, how far the predictions were off, and the model of ten million devices.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.scale import predictions
from tests.scale.connected import connected
from tests.scale.known import direct, with_pulsar
from tests.scale.model import Fleet, coefficients, sized
from tests.scale.servers import brokers_for, raise_open_files

_GROUPS = ("memory", "known", "connected")


def main() -> int:
    """Measure what is asked for. Returns 0, or 1 if a prediction was off by more than 30 %."""
    parser = argparse.ArgumentParser(prog="make scale")
    parser.add_argument("--devices", type=int, default=100_000, help="connected devices")
    parser.add_argument("--known", type=int, default=1_000_000, help="known devices, a twentieth of them parked")
    parser.add_argument("--only", choices=_GROUPS, action="append", help="one group instead of all")
    parser.add_argument("--show", action="store_true", help="show the last figures, measure nothing")
    parser.add_argument("--out", type=Path, default=Path("build/scale.json"))
    args = parser.parse_args()
    figures: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    if not args.show:
        for name in args.only or _GROUPS:
            figures[name] = {}
            figures[name] |= _measured(name, args, figures)
            _write(figures, args.out)
    show(figures)
    return int(any(not one["within_30_percent"] for name in _GROUPS for one in figures.get(name, {}).get("agrees", ())))


def _measured(name: str, args: argparse.Namespace, figures: dict[str, Any]) -> dict[str, Any]:
    """Run a group: small runs, predictions, the large run."""
    note = ""
    if name == "connected":
        files, note = raise_open_files(args.devices + 1000)
        brokers = brokers_for(args.devices, files)
        note = f"{brokers} MQTT brokers: {note}" if note else ""
        sizes: list[tuple[int, ...]] = [(args.devices // 20,), (args.devices // 5,), (args.devices,)]
        steps = [lambda size=size: connected(*size, brokers, overload=size == sizes[-1]) for size in sizes]  # type: ignore[misc]
    else:
        measure = direct if name == "memory" else with_pulsar
        sizes = [(known, known // 20) for known in (args.known // 10, args.known // 5, args.known)]
        steps = [lambda size=size, measure=measure: measure(*size) for size in sizes]  # type: ignore[misc]
    found: dict[str, Any] = {"begun": time.strftime("%Y-%m-%d %H:%M"), "note": note, "small": []}
    for size, step in zip(sizes, steps, strict=True):
        print(f"{name}: {' '.join(f'{n:,}' for n in size)} devices …", flush=True)
        if size == sizes[-1]:
            found["predicted"] = predictions.of(name, found["small"], size[0])
            if name == "known" and "predicted" in figures.get("memory", {}):
                found["predicted"]["peak_bytes_parked"] = predictions.with_parked(found["small"], figures["memory"])
            figures[name] = found
            _write(figures, args.out)
            begin = os.getloadavg()[0]
            found["measured"] = step()
            found["load"] = [begin, os.getloadavg()[0]]
        else:
            found["small"].append(step())
    found["agrees"] = predictions.compare(found["predicted"], found["measured"])
    return found


def _write(figures: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n")


def show(figures: dict[str, Any]) -> None:
    """Print the predictions beside what was measured, and the model; the model goes into the figures, too."""
    console = Console(width=140)
    table = Table("group", "figure", "predicted", "measured", "ratio")
    for name in _GROUPS:
        for one in figures.get(name, {}).get("agrees", ()):
            row = (f"{one['predicted']:,.4g}", f"{one['measured']:,.4g}", f"{one['ratio']:.2f}")
            table.add_row(name, one["figure"], *row)
    console.print(table)
    for name in _GROUPS:
        if figures.get(name, {}).get("note"):
            console.print(f"{name}: {figures[name]['note']}", markup=False)
    both = [figures.get(name, {}).get("measured") for name in ("connected", "known")]
    if all(both) and "spark_cpu_us" in both[0]:
        one = coefficients(*both)
        for fleet in (Fleet(), Fleet(presence_s=600)):
            rows = sized(fleet, one)
            model = Table(f"{fleet.devices:,} devices", "number", "unit", "how")
            for row in rows:
                model.add_row(
                    row.what, f"{row.number:,.4g}" if row.number < 1000 else f"{row.number:,.0f}", row.unit, row.how
                )
            console.print(model)


if __name__ == "__main__":
    raise SystemExit(main())
