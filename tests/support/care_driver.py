"""A rebuild or a forgetting in a process of its own, which kills itself and its JVM after a step:
``ROOT STEP rebuild LEAST`` (another least value of glucose) or ``ROOT STEP forget DEVICE``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

from streaming.forgetting import Forgetting
from streaming.rebuild import Rebuild, Span
from tests.support.bronze_rows import ARRIVAL
from tests.support.lakehouse import Lakehouse
from tests.support.spark import build_session
from tests.support.waiting import patient

__all__ = ["DAY", "killed_after", "main"]

DAY = Span(ARRIVAL, ARRIVAL + timedelta(days=1))
"""The span that is rebuilt."""


def killed_after(step: str, root: str, *what: str) -> None:
    """Run the driver until it kills itself after a step."""
    ended = subprocess.run(
        [sys.executable, "-c", "from tests.support.care_driver import main; main()", root, step, *what],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=patient(280),
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stdout + ended.stderr


def main() -> None:
    """Do it until the step."""
    root, last, what, about = sys.argv[1:]
    spark = build_session(Path(root).with_name("driver"))
    jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    house = Lakehouse(spark, Path(root))

    def die(step: str) -> None:
        if step == last:
            os.kill(jvm, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    if what == "rebuild":
        Rebuild(spark, house.tables, house.recipe(float(about)), DAY, die).run()
    else:
        Forgetting(spark, house.tables, about, after=die).run()
