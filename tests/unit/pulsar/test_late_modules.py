"""Modules that are loaded late are those that an import gives, and are loaded once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bridge.pulsar.late_modules import load_late


def _run(code: str, folder: Path) -> str:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env={"PYTHONPATH": f"{Path(__file__).parents[3]}:{folder}"},
    ).stdout


def test_a_module_is_loaded_by_its_first_use_not_by_its_import(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "one.py").write_text("print('one')\nfrom package import two\nvalue = two.value + 1\n")
    (package / "two.py").write_text("print('two')\nimport package.one\nvalue = 1\n")
    code = (
        "from bridge.pulsar.late_modules import load_late\n"
        "load_late('package.one', 'package.two', 'package.none', 'none.at_all')\n"
        "import package.one, package.two\n"
        "from package import one\n"
        "print('imported')\n"
        "from package.one import value\n"
        "print(value, package.one.value, package.two.value, package.one is one, type(one).__name__)\n"
    )
    assert _run(code, tmp_path).split("\n") == ["imported", "one", "two", "2 2 1 True module", ""]


def test_a_module_that_fails_to_load_fails_again(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise ValueError('broken')\n")
    code = (
        "from bridge.pulsar.late_modules import load_late\n"
        "load_late('broken')\n"
        "import broken\n"
        "for _ in range(2):\n"
        "    try:\n"
        "        broken.value\n"
        "    except ValueError as e:\n"
        "        print(e)\n"
    )
    assert _run(code, tmp_path).split() == ["broken", "broken"]


def test_a_loaded_module_stays_as_it_is() -> None:
    load_late("json")
    assert type(sys.modules["json"]).__name__ == "module"


def test_the_planner_starts_without_rarely_needed_modules(tmp_path: Path) -> None:
    code = (
        "import sys, sources.stream, sources.admission, sources.datasource\n"
        "from bridge.settings.log import LogSettings\n"
        "from bridge.loggers import configure_later, get_logger\n"
        "configure_later(LogSettings())\n"
        "get_logger('source').debug('not shown')\n"
        "print([n for n in ('structlog', 'rich.text', 'fastavro.read', 'pandas', 'pyarrow.compute') if n in sys.modules])\n"
        "import logging\n"
        "logging.getLogger('other').warning('a library: %s', 1)\n"
        "get_logger('source').warning('seen', at=1)\n"
        "get_logger('source').debug('not seen')\n"
    )
    first, library, ours, rest = _run(code, tmp_path).split("\n")
    assert first == "[]"
    assert "a library: 1" in library
    assert "[warning  ] seen" in ours
    assert "at=1" in ours
    assert rest == ""
