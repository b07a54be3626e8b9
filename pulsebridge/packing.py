"""Packs Pulsebridge with its dependencies into one file for a cluster. The file is a PEX that finds its interpreter.

Driver and executors run it as their Python: ``./pulsebridge.pex`` replaces ``python``. Each machine needs a CPython of
the same minor version and no other installation. The file has no pyspark. It uses the cluster's pyspark, by the
PYTHONPATH that Spark sets.

All packages are copied from the packing environment, without a download. Each machine unpacks the file once, to
``PEX_ROOT``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from pathlib import Path

from bridge.errors import MissingExtraError, TerminalError

__all__ = ["EXTRAS", "build_wheel", "needs_of", "pack", "pex_arguments", "requirements", "submit_words"]

EXTRAS = ("spark", "avro")
"""The extras that executors need. The driver of ``pulsebridge stream`` also needs quality."""
_DISTRIBUTION = "pulsebridge"
_NOT_PACKED = ("pyspark", "delta-spark")


def requirements(extras: Sequence[str], metadata: Iterable[str]) -> list[str]:
    """Return the requirements of these extras, from a distribution's ``Requires-Dist`` lines, without Spark."""
    found = []
    for line in metadata:
        need, _, marker = line.partition(";")
        name = need.strip()
        if marker and not any(marker.replace('"', "'").strip().endswith(f"extra == '{of}'") for of in extras):
            continue
        if not name.startswith((_DISTRIBUTION, *_NOT_PACKED)):
            found.append(name)
    return found


def pex_arguments(
    out: Path, wanted: Sequence[str], *, environment: Path, code: Path | None = None, compress: bool = True
) -> list[str]:
    """Return the arguments of pex. ``environment`` is the virtual environment with all packages. ``code`` is a folder
    with our own packages that are not installed in it.
    """
    return [
        *wanted,
        "--venv-repository",
        str(environment),
        *(("--sources-directory", str(code)) if code is not None else ()),
        "--sh-boot",
        "--venv",
        # PYTHONPATH must be used: it has Spark's own Python packages, and nothing else on a machine of a cluster.
        "--non-hermetic-venv-scripts",
        "--output-file",
        str(out),
        *(() if compress else ("--no-compress",)),
    ]


def submit_words(pex: Path, master: str, jars: Sequence[Path]) -> list[str]:
    """Return the command of a submission to a standalone cluster, without the job. It is for the folder of the
    packed file. The environment names the Python, because Spark's discovery of formats reads it only from there.
    """
    return [
        "env", f"PYSPARK_PYTHON=./{pex.name}",
        "spark-submit", "--master", master,
        "--files", pex.name,
        *(("--jars", ",".join(map(str, jars))) if jars else ()),
    ]  # fmt: skip


def pack(out: Path, *, extras: Sequence[str] = EXTRAS, compress: bool = True) -> Path:
    """Write the PEX and return its path.

    Raises MissingExtraError without pex, TerminalError if pex fails or Pulsebridge is not installed here.
    """
    if find_spec("pex") is None:
        raise MissingExtraError("packing needs pex", remedy="pip install 'pulsebridge[package]'")
    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    metadata = _metadata()
    with tempfile.TemporaryDirectory(prefix="pulsebridge-pack-") as folder:
        wanted, code = [f"{_DISTRIBUTION}[{','.join(extras)}]"], _checkout_code(Path(folder))
        if code is not None:
            wanted = requirements(extras, metadata)
        _run(
            "-m", "pex",
            *pex_arguments(out, wanted, environment=Path(sys.prefix), code=code, compress=compress),
        )  # fmt: skip
    return out


def _metadata() -> list[str]:
    try:
        return requires(_DISTRIBUTION) or []
    except PackageNotFoundError as e:
        raise TerminalError("pulsebridge is not installed in this Python", remedy="run `make setup`") from e


def needs_of(extras: Sequence[str]) -> list[str]:
    """Return the additional requirements of these extras. Raises TerminalError if Pulsebridge is not installed."""
    core = set(requirements((), _metadata()))
    return [need for need in requirements(extras, _metadata()) if need not in core]


def build_wheel(folder: Path) -> Path:
    """Write this project's wheel into a folder and return its path.

    Raises TerminalError if the packages are installed and not used from a checkout, because then a wheel exists.
    """
    root = Path(__file__).resolve().parents[1]
    if not (root / "pyproject.toml").is_file():
        raise TerminalError(
            "these packages were installed from a wheel",
            remedy="use that wheel: pip download pulsebridge",
        )
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pulsebridge-wheel-") as empty:
        _run(
            "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", empty, str(root)
        )  # fmt: skip
        (wheel,) = Path(empty).glob("*.whl")
        return Path(shutil.copy(wheel, folder))


def _checkout_code(folder: Path) -> Path | None:
    """Return the packages of a checkout as in a wheel, None if they are installed."""
    if not (Path(__file__).resolve().parents[1] / "pyproject.toml").is_file():
        return None
    wheel = build_wheel(folder)
    code = folder / "code"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(code)
    return code


def _run(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, *arguments], env=os.environ, check=False, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode != 0:
        last = "\n".join(done.stdout.splitlines()[-15:])
        raise TerminalError(f"{arguments[1]} ended with {done.returncode}:\n{last}")
