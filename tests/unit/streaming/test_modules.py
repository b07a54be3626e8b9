"""A user's module from a file: it declares here, and is there in a process that has no such file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bridge.errors import ConfigError
from streaming import pipelines as dp
from streaming.modules import import_module, sources_of

MODULE = """
from streaming import pipelines as dp

def limit():
    return 42

@dp.table
def plant():
    return dp.messages()
"""


def test_a_module_of_a_file_declares_and_travels_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plant_module.py"
    path.write_text(MODULE, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "plant_module", raising=False)
    with dp.declaring(dp.Pipeline()) as pipeline:
        import_module(str(path))
    assert list(pipeline.tables) == ["plant"]
    found = sources_of(["json", "plant_module"])
    assert found == (("plant_module", MODULE),)
    code = f"from streaming.modules import load_sources; load_sources({found!r}); import plant_module; print(plant_module.limit())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "42\n"


def test_an_error_of_a_module_is_reported_in_one_line_with_its_location(tmp_path: Path) -> None:
    path = tmp_path / "broken_module.py"
    path.write_text("x = 1\nraise KeyError('no such plant')\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"KeyError: 'no such plant' \(.*broken_module.py:2\)") as caught:
        import_module(str(path))
    assert "\n" not in str(caught.value)


def test_a_module_without_pyspark_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    path = tmp_path / "without_pyspark.py"
    path.write_text("from pyspark.sql import functions\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"pip install 'pulsebridge\[local"):
        import_module(str(path))
