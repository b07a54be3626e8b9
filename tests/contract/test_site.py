"""The documentation builds strictly, without a warning, and the pages of the notebooks are those of the notebooks."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.docs.notebooks import FOLDER, NOTEBOOKS, files_of
from tests.support.waiting import patient

ROOT: Final = Path(__file__).resolve().parents[2]


def need(*modules: str) -> None:
    for name in modules:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f'{name} is not installed: pip install "pulsebridge[docs]"')


class _Lenient(yaml.SafeLoader):
    """Reads a settings file of the site, whose tags name functions."""


_Lenient.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda loader, suffix, node: suffix)


def test_each_page_is_in_the_navigation_once() -> None:
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), _Lenient)

    def paths(node: object) -> list[str]:
        if isinstance(node, str):
            return [node]
        inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else []
        return [path for one in inner for path in paths(one)]

    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(paths(settings["nav"])) == sorted(pages)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_page_of_a_notebook_is_that_of_the_notebook(name: str) -> None:
    need("nbconvert")
    files = files_of(name)
    assert {path for path in FOLDER.rglob(f"{name}*/*") if path.is_file()} | {FOLDER / f"{name}.md"} == set(files)
    for path, content in files.items():
        assert path.read_bytes() == content, "python -m tests.docs.notebooks"


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    need("zensical")
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", "mkdocs.yml"],
        cwd=tmp_path, check=False, capture_output=True, text=True, timeout=patient(200),
    )  # fmt: skip
    out = done.stdout + done.stderr
    assert done.returncode == 0, out
    assert not re.search(r"warning|error", out, re.IGNORECASE), out
    assert (tmp_path / "build/site/index.html").is_file()
    assert (tmp_path / "build/site/tutorials/notebooks/first_stream.html").is_file()
