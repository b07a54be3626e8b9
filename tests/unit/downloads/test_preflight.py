"""What a machine must have: parsing and checks, without reading the machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pulsebridge.downloads import preflight
from pulsebridge.downloads.preflight import (
    check_disk,
    check_java,
    check_memory,
    check_python,
    find_java,
    java_candidates,
    parse_java_version,
)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', (17, "17.0.15")),
        ('openjdk version "21" 2023-09-19', (21, "21")),
        ('java version "1.8.0_402"\nJava(TM) SE Runtime', (8, "1.8.0_402")),
        ('openjdk version "25-ea" 2025-09-16', (25, "25-ea")),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "11.0.22" 2024-01-16', (11, "11.0.22")),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
        ("", None),
    ],
)
def test_the_version_is_read_from_what_java_prints(output: str, expected: tuple[int, str] | None) -> None:
    assert parse_java_version(output) == expected


def _fake_java(home: Path, version: str) -> Path:
    java = home / "bin/java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n", encoding="utf-8")
    java.chmod(0o755)
    return home


def test_java_home_comes_first_then_path_then_the_usual_folders(tmp_path: Path) -> None:
    named = _fake_java(tmp_path / "named", "17.0.1")
    on_path = _fake_java(tmp_path / "on-path", "21.0.1")
    usual = _fake_java(tmp_path / "jvm/jdk-17", "17.0.2")
    mac = _fake_java(tmp_path / "jvm/temurin/Contents/Home", "17.0.3")
    found = java_candidates(
        {"JAVA_HOME": str(named), "PATH": f"{on_path / 'bin'}:{on_path / 'bin'}"}, roots=[tmp_path / "jvm"]
    )
    assert found == [named, on_path, usual, mac]


def test_a_java_that_is_too_new_is_passed_over_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = _fake_java(tmp_path / "new", "25.0.1")
    fitting = _fake_java(tmp_path / "old", "21.0.2")
    environment = {"JAVA_HOME": str(new), "PATH": str(fitting / "bin")}
    java, others = find_java(environment)
    assert java is not None
    assert java.home == fitting
    assert [o.major for o in others] == [25]


def test_no_fitting_java_names_what_was_found_and_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = _fake_java(tmp_path / "new", "25.0.1")
    monkeypatch.setattr(preflight, "java_candidates", lambda environment: [new])
    finding = check_java({"JAVA_HOME": str(new)})
    assert not finding.ok
    assert "25.0.1" in finding.found
    assert "JAVA_HOME" in finding.remedy


@pytest.mark.parametrize(
    ("version", "ok"), [((3, 9, 18), False), ((3, 10, 0), True), ((3, 13, 5), True), ((3, 14, 0), False)]
)
def test_python_versions(version: tuple[int, int, int], ok: bool) -> None:
    assert check_python(version).ok is ok


def test_memory_is_checked_and_unknown_memory_passes() -> None:
    assert check_memory(8 * 1024**3).ok
    assert not check_memory(2 * 1024**3).ok
    assert check_memory(0).ok


def test_a_missing_folder_is_checked_by_its_parent(tmp_path: Path) -> None:
    finding = check_disk(tmp_path / "not/yet/there", needed=1, max_share=1.0)
    assert finding.ok
    assert str(tmp_path) in finding.found


def test_too_little_free_space_gives_the_remedy(tmp_path: Path) -> None:
    finding = check_disk(tmp_path, needed=1 << 60)
    assert not finding.ok
    assert "PULSEBRIDGE_LOCAL__DATA_DIR" in finding.remedy


def test_it_runs_with_the_bare_interpreter_and_says_one_line_for_each_missing_thing(tmp_path: Path) -> None:
    script = Path(preflight.__file__)
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(script), "--no-venv"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    lines = done.stderr.splitlines()
    assert done.returncode == (1 if lines else 0)
    assert all(" — " in line for line in lines)
