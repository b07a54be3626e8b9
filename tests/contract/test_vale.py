"""Vale finds nothing in any page of the documentation."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.docs.plain_words import INSTEAD

ROOT: Final = Path(__file__).resolve().parents[2]


def vale(*arguments: str) -> dict[str, list[dict[str, object]]]:
    """Return Vale's alerts by file; the test is skipped where Vale is not installed."""
    program = shutil.which("vale")
    if program is None or subprocess.run([program, "--version"], check=False, capture_output=True).returncode:
        pytest.skip("Vale is not installed, or could not be downloaded")
    done = subprocess.run([program, "--output=JSON", *arguments], cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr or done.stdout
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_vale_finds_nothing() -> None:
    found = vale("docs", "README.md")
    assert [f"{file}:{one['Line']}: {one['Message']}" for file, alerts in found.items() for one in alerts] == []


def test_vale_finds_each_word(tmp_path: Path) -> None:
    words = [word for group in INSTEAD for word in group.split()]
    page = tmp_path / "page.md"
    page.write_text("".join(f"The server {word} it.\n\n" for word in words), encoding="utf-8")
    (alerts,) = vale(str(page)).values()
    assert [one["Match"] for one in alerts] == words
