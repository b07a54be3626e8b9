"""What continuous integration runs is what the README says, and nothing that needs a prepared machine."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / ".ci/run"


def test_ci_runs_lint_and_then_the_readmes_test_command() -> None:
    text = RUN.read_text(encoding="utf-8")
    assert text.index("make lint") < text.rindex(" make test-all\n")
    assert "make test" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(r"^set -euo pipefail$", text, re.MULTILINE)
    assert RUN.stat().st_mode & stat.S_IXUSR
    subprocess.run(["bash", "-n", RUN], check=True, timeout=30)


def test_the_workflow_covers_every_python_and_java_that_is_promised() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    matrix = workflow["jobs"]["test"]["strategy"]["matrix"]
    assert matrix == {"python": ["3.10", "3.11", "3.12", "3.13"], "java": ["17", "21"]}
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'requires-python = ">=3.10,<3.14"' in project


def make(*arguments: str, **environment: str) -> str:
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip


def test_make_without_a_target_shows_the_help() -> None:
    shown = make()
    for target in ("help", "demo", "test", "lint", "bench", "clean"):
        assert re.search(rf"^  {target}\b", shown, re.MULTILINE)


def test_make_keeps_the_callers_environment_of_other_projects_out() -> None:
    # `make -p` prints make's own variables; those that are not exported do not reach the commands of a target.
    shown = make("--eval", "shown: ; @env", "shown", PYTHONPATH="/elsewhere", SPARK_HOME="/elsewhere")
    assert "PYTHONPATH" not in shown
    assert "SPARK_HOME" not in shown
