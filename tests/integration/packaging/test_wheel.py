"""The core install is the bridge alone: the wheel without extras runs ``pulsebridge ingest`` without a JVM's friends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.waiting import patient

ROOT = Path(__file__).resolve().parents[3]
NOT_IN_CORE = ("pyspark", "great_expectations", "pandas", "pyarrow", "numpy", "delta")
CORE_MB = 60
"""The most that the core install may take on disk, in MB, pip and the interpreter's own files left out."""


def run(*command: str | Path, cwd: Path, timeout: float = 150) -> str:
    """Run a command in an environment of its own and return what it printed; fail with all of it."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PULSEBRIDGE_", "VIRTUAL_ENV"))}
    done = subprocess.run(
        [str(c) for c in command], cwd=cwd, env=env, timeout=timeout, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = (
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        folder,
        ROOT,
    )
    run(sys.executable, *build, cwd=folder)
    (built,) = folder.glob("pulsebridge-*.whl")
    return built


@pytest.fixture(scope="module")
def core(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and nothing that an extra brings; returns its folder."""
    folder = tmp_path_factory.mktemp("core")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "v", cwd=folder)
    install = ("-m", "pip", "--python", folder / "v/bin/python", "install", "--quiet", "--no-compile")
    # The lock's versions, so that this test says the same tomorrow.
    pins = folder / "constraints.txt"
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins.write_text("\n".join(line.removesuffix(" \\") for line in lock if "==" in line), encoding="utf-8")
    run(sys.executable, *install, "--constraint", pins, wheel, cwd=folder)
    return folder


def test_the_wheel_has_the_packages_the_conf_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    packages = {"bridge", "sources", "sinks", "streaming", "sparkplug", "pulsebridge"}
    found_by_spark = {f"pyspark_pulsebridge{of}.py" for of in ("", "_commands", "_groups", "_mqtt")}
    assert {t for t in tops if not t.endswith(".dist-info")} == packages | found_by_spark
    assert {
        "bridge/_conf/default.yaml",
        "bridge/_conf/presets/zigbee2mqtt.yaml",
        "bridge/_conf/spark-defaults.conf",
        "bridge/_conf/spark-local.conf",
        "bridge/_conf/spark-commands.conf",
        "bridge/_conf/spark-throughput.conf",
        "bridge/_conf/rules.yaml",
    } <= set(names)
    assert {
        "bridge/_conf/demo/pulsebridge.yaml",
        "bridge/_conf/demo/gx/great_expectations.yml",
        "bridge/_conf/demo/gx/expectations/measurements.json",
        "pulsebridge/demo/report.html",
        "pulsebridge/demo/charts.json",
    } <= set(names)
    assert all(f"{package}/py.typed" in names for package in packages)
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_ingest_runs_from_the_core_install(core: Path) -> None:
    shown = run(core / "v/bin/pulsebridge", "ingest", "--help", cwd=core)
    assert "--config" in shown
    assert "left out" not in shown


@pytest.mark.long
def test_the_core_install_has_neither_spark_nor_great_expectations(core: Path) -> None:
    code = (
        "import importlib.util as u, bridge\n"
        f"print([m for m in {NOT_IN_CORE!r} if u.find_spec(m)])\n"
        "from bridge.settings.loading import conf_path; print(conf_path('default.yaml'))"
    )
    present, conf = run(core / "v/bin/python", "-c", code, cwd=core).splitlines()
    assert present == "[]"
    assert "site-packages/bridge/_conf" in conf


@pytest.mark.long
def test_a_command_that_needs_an_extra_names_the_install_line(core: Path) -> None:
    done = subprocess.run(
        [str(core / "v/bin/pulsebridge"), "demo", "--quick"],
        cwd=core, capture_output=True, text=True, timeout=patient(60), check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert re.search(r"pip install ['\"]pulsebridge\[", done.stderr)
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_the_core_install_is_small(core: Path) -> None:
    (site,) = (core / "v/lib").glob("python*/site-packages")
    total = sum(f.stat().st_size for f in site.rglob("*") if f.is_file())
    assert total / 1e6 < CORE_MB
