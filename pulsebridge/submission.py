"""Additional files and the submit command for each kind of cluster.

``write_files`` writes the files. Only standalone clusters are tested (with a master and two workers as processes). The
other commands follow the documents of Spark and Databricks.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pulsebridge.packing import submit_words

if TYPE_CHECKING:
    from pulsebridge.job_files import JobFiles

__all__ = ["FOLDER", "JOB", "Target", "databricks_job", "dockerfile", "line", "notes", "write_files"]

JOB: Final = "pulsebridge_job.py"
FOLDER: Final = "pulsebridge-conf"
"""Name of the folder of the settings and their files, beside the packed file."""
_SCRIPT: Final = '''"""The job of Pulsebridge, for spark-submit. Its first argument is the folder of the settings."""

import os
import sys

from streaming.job import main

if __name__ == "__main__":
    folder, *arguments = sys.argv[1:]
    os.chdir(folder)  # paths in the settings are relative to it
    sys.exit(main(["--config", "pulsebridge.yaml", *arguments]))
'''
_PROPERTIES: Final = "spark-defaults.conf"
_IN_IMAGE: Final = "/opt/pulsebridge"
_JOBS_OWN: Final = (
    "spark.sql.session.timeZone",
    "spark.sql.streaming.noDataMicroBatches.enabled",
    "spark.sql.streaming.stateStore.providerClass",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled",
    "spark.sql.execution.arrow.pyspark.enabled",
    "spark.sql.python.filterPushdown.enabled",
    "spark.sql.redaction.options.regex",
)
"""Settings that the jobs need. The rest of conf/spark-defaults.conf is sizes, and Delta's set-up."""


class Target(str, Enum):
    """The kinds of clusters."""

    standalone = "standalone"
    yarn = "yarn"
    k8s = "k8s"
    databricks = "databricks"

    @property
    def master(self) -> str:
        """The master of a submission; words in capitals must be replaced."""
        return {
            Target.standalone: "spark://HOST:7077",
            Target.yarn: "yarn",
            Target.k8s: "k8s://https://HOST:6443",
            Target.databricks: "",
        }[self]


def line(target: Target, pex: Path, master: str, jars: Sequence[Path]) -> str:
    """Return the command that submits the jobs, for the folder of the packed file. Not for Databricks."""
    if target is Target.standalone:
        words = submit_words(pex, master, jars)
        return shlex.join([*words, "--properties-file", _PROPERTIES, JOB, FOLDER])
    words = ["spark-submit", "--master", master, "--deploy-mode", "cluster", "--properties-file", _PROPERTIES]
    if target is Target.yarn:
        # In cluster mode the driver's Python is the executors': both find the file in their working folder.
        words += [
            "--conf", f"spark.yarn.appMasterEnv.PYSPARK_PYTHON=./{pex.name}",
            "--conf", f"spark.executorEnv.PYSPARK_PYTHON=./{pex.name}",
            "--conf", "spark.yarn.appMasterEnv.PEX_ROOT=./.pex",
            "--conf", "spark.executorEnv.PEX_ROOT=./.pex",
            "--files", pex.name,
            "--archives", f"{FOLDER}.zip#{FOLDER}",
            "--jars", ",".join(map(str, jars)),
            JOB, FOLDER,
        ]  # fmt: skip
    else:
        python = f"{_IN_IMAGE}/{pex.name}"
        words += [
            "--conf", "spark.kubernetes.container.image=IMAGE",
            "--conf", f"spark.kubernetes.driverEnv.PYSPARK_PYTHON={python}",
            "--conf", f"spark.executorEnv.PYSPARK_PYTHON={python}",
            "--conf", "spark.kubernetes.driverEnv.PEX_ROOT=/tmp/pex",
            "--conf", "spark.executorEnv.PEX_ROOT=/tmp/pex",
            "--jars", ",".join(f"local://{_IN_IMAGE}/jars/{jar.name}" for jar in jars),
            f"local://{_IN_IMAGE}/{JOB}", f"{_IN_IMAGE}/{FOLDER}",
        ]  # fmt: skip
    return shlex.join(words)


def dockerfile(pex: Path) -> str:
    """Return the Dockerfile of an image with the jobs. Its Spark image must have the packing Python's version."""
    return (
        "# SPARK_IMAGE: an image of Spark 4 with a CPython of the packing Python's minor version.\n"
        "ARG SPARK_IMAGE\n"
        "FROM ${SPARK_IMAGE}\n"
        f"COPY {pex.name} {JOB} {_IN_IMAGE}/\n"
        f"COPY jars {_IN_IMAGE}/jars\n"
        "# 185: the user of Spark's images. Great Expectations writes its Data Docs beside the suites.\n"
        f"COPY --chown=185 {FOLDER} {_IN_IMAGE}/{FOLDER}\n"
    )


def databricks_job(wheel: str, needs: Iterable[str], defaults: Mapping[str, str]) -> dict[str, Any]:
    """Return the body of ``databricks jobs create``. ``needs``: the requirements of the wheel's extras; ``defaults``:
    the pairs of conf/spark-defaults.conf. Databricks has its own Delta, Python and pyspark, so it needs no packed file.
    """
    volume = "/Volumes/CATALOG/SCHEMA/VOLUME"
    libraries: list[dict[str, Any]] = [{"whl": f"{volume}/{wheel}"}]
    libraries += [{"pypi": {"package": need}} for need in needs]
    return {
        "name": "pulsebridge",
        "max_concurrent_runs": 1,
        "tasks": [
            {
                "task_key": "jobs",
                "spark_python_task": {
                    "python_file": f"{volume}/{JOB}",
                    "parameters": [f"{volume}/{FOLDER}"],
                },
                "new_cluster": {
                    "spark_version": "RUNTIME",
                    "node_type_id": "NODE_TYPE",
                    "num_workers": 2,
                    "data_security_mode": "SINGLE_USER",
                    "spark_conf": {name: defaults[name] for name in _JOBS_OWN if name in defaults},
                },
                "libraries": libraries,
                "max_retries": -1,
            }
        ],
    }


def notes(target: Target, files: JobFiles) -> list[str]:
    """Return the steps before the command, and the test status."""
    found = [f"{FOLDER}: your settings and their files; all machines must reach streaming.root and the tables"]
    found += files.notes
    if target is Target.standalone:
        return [*found, "tested: a master and two workers as processes, client mode"]
    if target is Target.k8s:
        found.append("first: docker build --build-arg SPARK_IMAGE=… -t IMAGE . in this folder, and push it")
    if target is Target.databricks:
        found.append(
            f"first: copy the wheel, the script and {FOLDER} into the volume; RUNTIME must have Spark 4 and "
            "a Python from 3.10 on; then: databricks jobs create --json @databricks-job.json"
        )
    return [*found, "not tested on such a cluster"]


def write_files(
    target: Target,
    artefact: Path,
    *,
    files: JobFiles,
    jars: Sequence[Path],
    properties: Path,
    job: Mapping[str, Any],
) -> list[Path]:
    """Write the additional files into the folder of the packed file or wheel; return them. ``properties`` is
    conf/spark-defaults.conf, ``job`` the body for Databricks.
    """
    folder = artefact.parent
    files.copy_to(folder)
    written = [folder / FOLDER]
    if target is Target.yarn:
        written.append(Path(shutil.make_archive(str(folder / FOLDER), "zip", folder / FOLDER)))
    texts = {JOB: _SCRIPT}
    if target is Target.k8s:
        texts["Dockerfile"] = dockerfile(artefact)
        (folder / "jars").mkdir(exist_ok=True)
        for jar in jars:
            shutil.copy(jar, folder / "jars")
    if target is Target.databricks:
        texts["databricks-job.json"] = json.dumps(job, indent=2) + "\n"
    else:
        texts[_PROPERTIES] = properties.read_text(encoding="utf-8")
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [*written, *(folder / name for name in texts)]
