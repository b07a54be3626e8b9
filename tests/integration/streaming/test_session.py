"""The settings that a session of Pulsebridge gives to its workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_workers_take_the_installed_pyspark_and_not_its_zipped_copy(spark: SparkSession) -> None:
    def modules(_: int) -> list[str]:
        import sys

        import pyspark

        return [str(pyspark.__file__), *sys.path]

    found, *path = spark.sparkContext.parallelize([0], 1).flatMap(modules).collect()
    assert Path(found).is_file()
    assert [entry for entry in path if entry.endswith((".zip", ".jar")) and "pyspark" in entry] == []


def test_a_java_that_ends_at_once_is_one_line_with_what_it_printed(tmp_path: Path) -> None:
    java = tmp_path / "bin/java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'Unrecognized option: -x' >&2\nexit 1\n", encoding="utf-8")
    java.chmod(0o755)
    code = "from pulsebridge.cli.app import main; main()"
    words = [sys.executable, "-c", code, "stream", "--set", f"streaming.root={tmp_path}/lakehouse", "--available-now"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    done = subprocess.run(
        words, cwd=tmp_path, env=environment | {"JAVA_HOME": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    printed = done.stdout + done.stderr
    assert done.returncode == 1
    assert "Traceback" not in printed
    assert "Java ended before Spark ran: Unrecognized option: -x" in printed
    assert "build/spark.log" in printed
