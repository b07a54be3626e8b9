from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from pulsebridge.job_files import JobFiles
from pulsebridge.packing import needs_of
from pulsebridge.submission import (
    FOLDER,
    JOB,
    Target,
    databricks_job,
    dockerfile,
    line,
    notes,
    write_files,
)
from streaming.session import spark_defaults

PEX = Path("/d/pulsebridge.pex")
JARS = [Path("/j/delta.jar"), Path("/j/antlr.jar")]


@pytest.mark.parametrize("target", [t for t in Target if t is not Target.databricks])
def test_the_whole_line_names_python_jars_properties_job_and_settings(target: Target) -> None:
    words = shlex.split(line(target, PEX, target.master, JARS))
    assert words[words.index("--master") + 1] == target.master
    assert any(word.endswith("pulsebridge.pex") and "PYSPARK_PYTHON=" in word for word in words)
    assert words[words.index("--jars") + 1].count("delta.jar") == 1
    assert words[words.index("--properties-file") + 1] == "spark-defaults.conf"
    assert words[-2].endswith(JOB)
    assert words[-1].endswith(FOLDER)
    assert ("cluster" in words) is (target is not Target.standalone)


def test_untested_versions_are_named() -> None:
    assert not any("not tested" in note for note in notes(Target.standalone, JobFiles()))
    assert all(any("not tested" in n for n in notes(t, JobFiles())) for t in Target if t is not Target.standalone)


def test_the_script_runs_the_job(tmp_path: Path) -> None:
    properties = tmp_path / "from.conf"
    properties.write_text("spark.app.name x\n")
    jars = [tmp_path / "delta.jar"]
    jars[0].write_bytes(b"jar")
    written = write_files(Target.k8s, tmp_path / "p.pex", files=JobFiles(), jars=jars, properties=properties, job={})
    assert {file.name for file in written} == {JOB, FOLDER, "Dockerfile", "spark-defaults.conf"}
    assert (tmp_path / "jars/delta.jar").read_bytes() == b"jar"
    assert "COPY p.pex" in dockerfile(tmp_path / "p.pex")
    compile((tmp_path / JOB).read_text(), JOB, "exec")


def test_databricks_gets_the_wheel_its_needs_and_nothing_of_spark(tmp_path: Path) -> None:
    job = databricks_job("p.whl", needs_of(("spark", "avro")), spark_defaults())
    write_files(Target.databricks, tmp_path / "p.whl", files=JobFiles(), jars=[], properties=tmp_path, job=job)
    (task,) = json.loads((tmp_path / "databricks-job.json").read_text())["tasks"]
    needs = [entry["pypi"]["package"] for entry in task["libraries"] if "pypi" in entry]
    assert any(need.startswith("pyarrow") for need in needs)
    assert any(need.startswith("fastavro") for need in needs)
    assert not any(need.startswith(("pyspark", "delta", "structlog")) for need in needs)
    conf = task["new_cluster"]["spark_conf"]
    assert conf["spark.sql.session.timeZone"] == "UTC"
    assert not any("memory" in name or "extensions" in name for name in conf)
