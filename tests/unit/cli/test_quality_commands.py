"""What `pulsebridge quality` shows of suites, without a table or Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

COMFORT = Path(__file__).resolve().parents[3] / "examples" / "comfort.py"


@pytest.mark.thorough
def test_rules_shows_what_splits_rows_with_the_users_own_expectations(tmp_path: Path) -> None:
    kinds = ("expect_column_values_to_be_whole", "expect_column_mean_to_be_between")
    kwargs = ({}, {"max_value": 60})
    entries = [
        {"type": kind, "kwargs": {"column": "humidity", **more}} for kind, more in zip(kinds, kwargs, strict=True)
    ]
    (tmp_path / "expectations").mkdir()
    (tmp_path / "great_expectations.yml").touch()
    (tmp_path / "expectations" / "comfort.json").write_text(json.dumps({"expectations": entries}), "utf-8")
    sets = {"streaming.modules": json.dumps([str(COMFORT)]), "streaming.suites": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", "from pulsebridge.cli.app import main; main()", "quality", "rules", "comfort", "--json",
         *(word for name, value in sets.items() for word in ("--set", f"{name}={value}"))],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [(rule["expectation"], rule["splits"]) for rule in json.loads(done.stdout)]
    assert found == [(kinds[0], True), (kinds[1], False)]
