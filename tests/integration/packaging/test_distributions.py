"""The built wheel and source archive are fit for an index, and the bill of materials is that of the lock."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from bridge import __version__
from tests.support.waiting import patient

ROOT = Path(__file__).resolve().parents[3]


def run(*command: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)], cwd=ROOT, timeout=patient(150), check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("dist")
    run("hatchling", "build", "--target", "sdist", "--target", "wheel", "--directory", folder)
    return sorted(folder.iterdir())


def test_twine_accepts_both(built: list[Path]) -> None:
    pytest.importorskip("twine", reason="twine is not installed")
    assert [path.name for path in built] == [
        f"pulsebridge-{__version__}-py3-none-any.whl", f"pulsebridge-{__version__}.tar.gz",
    ]  # fmt: skip
    assert run("twine", "check", "--strict", *built).count("PASSED") == 2


def test_the_source_archive_has_what_a_build_needs(built: list[Path]) -> None:
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "SECURITY.md", "bridge/__init__.py", "conf/default.yaml"} <= names
    assert not [name for name in names if name.startswith(("tests/", "build/", ".venv/"))]


def test_the_bill_of_materials_is_valid_and_has_each_locked_package(tmp_path: Path) -> None:
    """The command of ``make sbom``."""
    pytest.importorskip("cyclonedx_py", reason="cyclonedx-bom is not installed")
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    (command,) = re.findall(r"^\t@\$\(BIN\)/cyclonedx-py (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    target = tmp_path / "sbom.json"
    run("cyclonedx_py", *command.replace("build/sbom.json", str(target)).split())
    text = target.read_text(encoding="utf-8")
    sbom: dict[str, Any] = json.loads(text)
    assert JsonStrictValidator(SchemaVersion.from_version(sbom["specVersion"])).validate_str(text) is None
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    pins = {(name, pin) for name, pin in re.findall(r"^([\w.-]+)==([^\s;\\]+)", lock, re.MULTILINE)}
    assert {(one["name"], one["version"]) for one in sbom["components"]} == pins
    assert sbom["metadata"]["component"]["name"] == "pulsebridge"
    hashes = [
        h["alg"] for one in sbom["components"] for r in one.get("externalReferences", ()) for h in r.get("hashes", ())
    ]
    assert set(hashes) == {"SHA-256"}
