"""Run the benchmarks: ``python -m tests.bench [--only GROUP]``; writes ``build/bench.json``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bridge.errors import PulsebridgeError
from tests.bench import (
    audit,
    idle,
    ingest,
    loop,
    notebook,
    outage,
    push,
    push_parked,
    silver,
    source,
    spark_settings,
    sparkplug,
)
from tests.bench.results import Figure, show, write

GROUPS = {
    "ingest": ingest.measure,
    "outage": outage.measure,
    "source": source.measure,
    "idle": idle.measure,
    "loop": loop.measure,
    "silver": silver.measure,
    "settings": spark_settings.measure,
    "sparkplug": sparkplug.measure,
    "notebook": notebook.measure,
    "audit": audit.measure,
    "push": push.measure,
    "parked": push_parked.measure,
}

ON_REQUEST = {
    "outage": "takes 12 minutes",
    "idle": "takes 10 minutes",
    "parked": "takes 10 minutes",
    "silver": "takes several minutes",
    "audit": "takes several minutes",
    "settings": "takes 20 minutes",
    "sparkplug": "takes several minutes",
}


def main() -> int:
    """Measure the groups asked for. Returns 0, or 1 when a group could not be measured."""
    parser = argparse.ArgumentParser(prog="make bench")
    parser.add_argument("--only", choices=sorted(GROUPS), help="one group instead of all")
    parser.add_argument("--out", type=Path, default=Path("build/bench.json"))
    args = parser.parse_args()
    figures: list[Figure] = []
    left_out: list[str] = []
    failed = False
    for name, measure in GROUPS.items():
        if args.only is None and name in ON_REQUEST:
            left_out.append(f"{name}: {ON_REQUEST[name]}; ask for it with ONLY={name}")
            continue
        if args.only not in (None, name):
            continue
        print(f"measuring {name} …", flush=True)
        try:
            got, missing = measure()
        except (OSError, RuntimeError, TimeoutError, AssertionError, PulsebridgeError) as e:
            failed = True
            left_out.append(f"{name}: {e}")
            continue
        figures += got
        left_out += missing
    show(figures, left_out)
    write(figures, args.out)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
