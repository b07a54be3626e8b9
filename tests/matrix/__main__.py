"""``make matrix``: the contract suite of source and sink on each Spark; writes ``build/matrix.json``.

The servers are started once and serve all cells, one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

from pulsebridge.downloads.preflight import find_java
from tests.matrix.environments import CELLS, ROOT, Cell, environment
from tests.support.stack import session_stack

_WARNINGS = ("-W", "ignore::ResourceWarning", "-W", "ignore::pytest.PytestUnraisableExceptionWarning")
"""Older pysparks leave their sockets to the garbage collector."""
SUITE = (
    "tests/unit/sources",
    "tests/unit/sinks",
    "tests/integration/sources",
    "tests/integration/sinks",
)
"""The tests that run on every Spark."""


def main() -> int:
    """Run the cells asked for. Returns 0 when all that ran passed."""
    parser = argparse.ArgumentParser(prog="make matrix")
    parser.add_argument("--spark", help="only this Spark, such as 4.0; or a version of its own, such as 4.0.1")
    parser.add_argument("--python", help="only this Python, such as 3.12")
    parser.add_argument("--out", type=Path, default=Path("build/matrix.json"))
    parser.add_argument("tests", nargs="*", help="other tests than the contract suite, or options of pytest")
    args, more = parser.parse_known_args()
    tests = [*args.tests, *more] or list(SUITE)
    cells = [cell for cell in _cells(args.spark) if args.python in (None, cell.python)]
    java = find_java()[0]
    rows = []
    with session_stack() as stack:
        at = ",".join((stack.mqtt_url, stack.pulsar_url, stack.admin_url))
        for cell in cells:
            row = {"spark": cell.spark, "delta": cell.delta, "python": cell.python}
            row["java"] = str(java.major) if java is not None else "none"
            interpreter = cell.interpreter()
            rows.append(row | (_run(cell, interpreter, tests, at) if interpreter else {"left_out": "no such Python"}))
            print(json.dumps(rows[-1]), flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 1 if not rows or any(row.get("failed") for row in rows) else 0


def _cells(spark: str | None) -> list[Cell]:
    if spark is None:
        return list(CELLS)
    minor = ".".join(spark.split(".")[:2])
    known = [cell for cell in CELLS if cell.spark.startswith(minor + ".")]
    return known if spark == minor else [replace(cell, spark=spark) for cell in known]


def _run(cell: Cell, interpreter: Path, tests: list[str], stack: str) -> dict[str, object]:
    python = environment(cell, interpreter)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYSPARK_", "SPARK_", "VIRTUAL_ENV"))}
    env |= {"PYTHONPATH": str(ROOT), "TEST_STACK": stack}
    env["PATH"] = os.pathsep.join((str(python.parent), env.get("PATH", "")))
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            python,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-o",
            "timeout=600",
            *_WARNINGS,
            f"--junitxml={report}",
            *tests,
        ]
        done = subprocess.run(command, cwd=ROOT, env=env, check=False)
        suite = ET.parse(report).getroot().find("testsuite") if report.exists() else None
    counts = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    if suite is not None:
        counts = {name: int(suite.get(name, 0)) for name in counts}
    bad = counts["failures"] + counts["errors"]
    return {
        "passed": counts["tests"] - bad - counts["skipped"],
        "skipped": counts["skipped"],
        "failed": bad or int(done.returncode != 0),
        "seconds": round(time.monotonic() - begin),
    }


if __name__ == "__main__":
    sys.exit(main())
