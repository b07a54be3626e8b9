"""The launcher of Spark's Python: what it takes out of the module path, and when there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from sources.python_start import launcher, local_python, start_from_packages

SHOW = "import json, os, sys; print(json.dumps([os.environ.get('PYTHONPATH'), sys.executable, sys.argv[1:]]))"


def shown(program: str, path: list[str], *arguments: str) -> list[object]:
    ended = subprocess.run(
        [program, "-c", SHOW, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return list(json.loads(ended.stdout))


def test_what_spark_puts_first_goes_and_the_rest_stays_in_its_order(tmp_path: Path) -> None:
    pyspark = tmp_path / "with a space" / "pyspark"
    program = tmp_path / "python"
    program.write_text(launcher(Path(sys.executable), pyspark), encoding="utf-8")
    program.chmod(0o755)
    zipped, jar = str(pyspark / "python/lib/pyspark.zip"), str(pyspark / "jars/spark-core.jar")
    others = ["/other/pyspark/python", f"{pyspark}-connect", "/a folder", "/*"]
    got = shown(str(program), [zipped, jar, *others], "an argument", "--and more")
    assert got == [os.pathsep.join(others), sys.executable, ["an argument", "--and more"]]
    assert shown(str(program), [zipped])[0] == ""


def test_it_is_written_once_and_this_python_serves_where_it_cannot_be(tmp_path: Path) -> None:
    folder = tmp_path / "launchers"
    first = local_python(folder)
    assert shown(first, ["/a", "/b"]) == ["/a:/b", sys.executable, []]
    written = Path(first).stat().st_ino
    assert (local_python(folder), Path(first).stat().st_ino) == (first, written)
    assert [file.name for file in folder.iterdir()] == [Path(first).name]

    Path(first).chmod(0o644)  # as on a disk that lets nothing execute
    assert local_python(folder) == sys.executable
    (tmp_path / "file").touch()
    assert local_python(tmp_path / "file" / "launchers") == sys.executable


class Session:
    """What is asked of a session: its context's master and Python."""

    def __init__(self, master: str, python: str) -> None:
        self.sparkContext = self
        self.master = master
        self.pythonExec = python


def test_a_session_gets_it_where_it_would_start_this_python_on_this_machine() -> None:
    here = sys.executable
    for master, python, expected in (
        ("local[2]", here, local_python()),
        ("local[2]", "/bin/sh", "/bin/sh"),
        ("local[2]", "/not/there", "/not/there"),
        ("yarn", here, here),
    ):
        session = Session(master, python)
        start_from_packages(session)
        assert session.pythonExec == expected
    start_from_packages(object())  # Spark Connect
