"""Environments with another Spark than the locked one: made once, below the user's cache folder, by pip."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path

from bridge.user_folders import default_cache_dir
from pulsebridge.downloads.distributions import locked

__all__ = ["CELLS", "ROOT", "TOOLS", "Cell", "environment", "locked_environment", "pins"]

ROOT = Path(__file__).resolve().parents[2]
_OWN = ("pyspark", "delta-spark")
"""What the cell chooses; all else comes in the lock's versions."""
TOOLS = (
    "pytest",
    "pytest-randomly",
    "pytest-timeout",
    "pytest-xdist",
    "hypothesis",
    "trustme",
    "pyjwt",
    "click",
    "tenacity",
)


@dataclass(frozen=True)
class Cell:
    """One cell of the matrix."""

    spark: str
    delta: str
    python: str
    """Such as 3.11."""
    others: tuple[str, ...] = ()
    """The packages that replace the lock's versions of these."""

    def interpreter(self) -> Path | None:
        """Return the cell's Python where it is on the PATH and runs."""
        if self.python == "{}.{}".format(*sys.version_info[:2]):
            return Path(sys.executable)
        found = shutil.which(f"python{self.python}")
        if found is None:
            return None
        done = subprocess.run([found, "-c", "import venv, ensurepip"], capture_output=True, check=False)
        return Path(found) if done.returncode == 0 else None


_PYARROW_OF_4_0 = ("pyarrow==25.0.0",)  # with 26 Spark 4.0's own applyInPandasWithState ends with a TypeError
CELLS = (
    Cell("4.0.3", "4.4.0", "3.10", _PYARROW_OF_4_0),
    Cell("4.0.3", "4.4.0", "3.11", _PYARROW_OF_4_0),
    Cell("4.1.4", "4.4.0", "3.11"),
    Cell("4.1.4", "4.4.0", "3.12"),
    Cell("4.2.0", "4.4.0", "3.11"),
    Cell("4.2.0", "4.4.0", "3.13"),
)
"""Delta 4.4 is published for each of these Sparks, under its name (delta-spark_4.0_2.13 and so on)."""


def environment(cell: Cell, interpreter: Path) -> Path:
    """Return the Python of the cell's environment, made the first time: the project's dependencies for Spark, the
    cell's pyspark and delta-spark, and what the tests need. The project itself is not in it.
    """
    wanted = [f"pyspark=={cell.spark}", f"delta-spark=={cell.delta}", *_dependencies(), *TOOLS]
    chosen = {*_OWN, *(pin.partition("==")[0] for pin in cell.others)}
    constraints = [*(pin for pin in pins() if pin.partition("==")[0] not in chosen), *cell.others]
    return locked_environment(f"spark-{cell.spark}-py{cell.python}", interpreter, wanted, constraints)


def locked_environment(name: str, interpreter: Path, wanted: Sequence[str], constraints: Sequence[str]) -> Path:
    """Return the Python of an environment with these packages, made the first time below the user's cache folder."""
    mark = hashlib.sha256("\n".join([*wanted, *constraints, str(interpreter.resolve())]).encode()).hexdigest()[:12]
    folder = default_cache_dir() / "matrix" / f"{name}-{mark}"
    python = folder / "bin/python"
    with locked(default_cache_dir() / "locks" / folder.name):
        if (folder / "complete").is_file():
            return python
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([interpreter, "-m", "venv", "--without-pip", folder], check=True)
        (folder / "constraints.txt").write_text("\n".join(constraints), encoding="utf-8")
        install = ("install", "--quiet", "--no-compile", "--constraint", folder / "constraints.txt")
        subprocess.run([sys.executable, "-m", "pip", "--python", python, *install, *wanted], check=True)
        (folder / "complete").touch()
    return python


def _dependencies() -> list[str]:
    """Return what the project needs for Spark, as its metadata have it."""
    found = []
    for line in requires("pulsebridge") or []:
        name, _, marker = line.partition(";")
        if not marker or any(f"'{extra}'" in marker.replace('"', "'") for extra in ("spark", "avro", "decoders")):
            found.append(name.strip())
    return [name for name in found if not name.startswith(("pulsebridge", *_OWN))]


def pins() -> list[str]:
    """Return the lock's versions as constraints for pip."""
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    return [line.removesuffix(" \\") for line in lines if "==" in line and not line.startswith(" ")]
