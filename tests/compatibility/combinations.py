"""One run of a part of the tests on one Python, Java and Spark, and its record in ``results``."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from pulsebridge.downloads.preflight import find_java
from tests.matrix.environments import ROOT, TOOLS, Cell, locked_environment, pins

__all__ = ["BRIDGE_TESTS", "PYTHONS", "RESULTS", "Record", "records", "run_bridge", "run_spark"]

RESULTS: Final = Path(__file__).parent / "results"
PYTHONS: Final = ("3.10", "3.11", "3.12", "3.13")
_TOOLS: Final = ("paho-mqtt", "kubernetes-validate", "pyarrow")
"""What these tests import beside the bridge."""
_OF_SPARK: Final = "tests/unit/pulsar/test_late_modules.py"
"""It starts the planner of the source, which needs pyspark."""
_WRITTEN: Final = (":!docs/reference/compatibility.md", ":!tests/compatibility/results")
Part = Literal["bridge", "spark"]

BRIDGE_TESTS: Final = tuple(
    f"tests/unit/{name}"
    for name in ("bridge", "contract", "dead_letters", "http", "inspect", "intake", "mqtt", "protocols", "pulsar", "routing", "settings")
)  # fmt: skip
"""Tests of the core install with the extra http: no server, no Spark, no Java."""


@dataclass(frozen=True, slots=True)
class Record:
    """What one run had as result. ``java`` and ``spark`` are empty for the part bridge, which has neither."""

    part: Part
    python: str
    java: str
    spark: str
    passed: int
    skipped: int
    failed: int
    commit: str
    date: str

    @property
    def name(self) -> str:
        """The name of its file: one for each combination of minor versions."""
        minor = ".".join(self.python.split(".")[:2])
        more = f"-java{self.java.partition('.')[0]}-spark{'.'.join(self.spark.split('.')[:2])}" if self.spark else ""
        return f"{self.part}-python{minor}{more}.json"

    def store(self) -> None:
        """Write it into ``results``, in the place of an older one of the same combination."""
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / self.name).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")


def records() -> list[Record]:
    """Return what was run, by combination."""
    return [Record(**json.loads(path.read_text(encoding="utf-8"))) for path in sorted(RESULTS.glob("*.json"))]


def _today() -> tuple[str, str]:
    """Return the commit, marked if files differ from it that a run does not write, and the date."""
    words = ["git", "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", ".", *_WRITTEN], cwd=ROOT, check=False).returncode
    return commit + ("-dirty" if changed else ""), datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat()


def run_bridge(python: str) -> Record | None:
    """Run the tests of the bridge in an environment with the locked packages; None without such a Python.

    The environment has the project's metadata, and the tests run on the code of the checkout.
    """
    interpreter = Cell("", "", python).interpreter()
    if interpreter is None:
        return None
    environment = locked_environment(f"bridge-py{python}", interpreter, [f"{ROOT}[http]", *TOOLS, *_TOOLS], pins())
    version = subprocess.run([environment, "-V"], capture_output=True, text=True, check=True).stdout.split()[1]
    commit, date = _today()
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PULSEBRIDGE_", "VIRTUAL_ENV"))}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = (
            "-q",
            "-p",
            "no:cacheprovider",
            f"--ignore={_OF_SPARK}",
            "-m",
            "not stack and not spark and not long",
            f"--junitxml={report}",
        )
        subprocess.run(
            [environment, "-m", "pytest", *options, *BRIDGE_TESTS],
            cwd=ROOT,
            env=env | {"PYTHONPATH": str(ROOT)},
            check=False,
        )
        suite = ET.parse(report).getroot().find("testsuite")
    assert suite is not None, "pytest wrote no report"
    counts = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    failed = counts["failures"] + counts["errors"]
    passed = counts["tests"] - failed - counts["skipped"]
    return Record("bridge", version, "", "", passed, counts["skipped"], failed, commit, date)


def run_spark(spark: str | None, python: str | None) -> list[Record]:
    """Run the tests of source and sink as ``make matrix`` does, on the Java of JAVA_HOME; heavy."""
    java = find_java()[0]
    commit, date = _today()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "matrix.json"
        chosen = [f"--{name}={value}" for name, value in (("spark", spark), ("python", python)) if value]
        subprocess.run([sys.executable, "-m", "tests.matrix", *chosen, "--out", out], cwd=ROOT, check=False)
        rows = json.loads(out.read_text(encoding="utf-8"))
    return [
        Record(
            "spark", row["python"], str(java.major) if java else "", row["spark"], row["passed"], row["skipped"],
            row["failed"], commit, date,
        )
        for row in rows if "left_out" not in row
    ]  # fmt: skip
