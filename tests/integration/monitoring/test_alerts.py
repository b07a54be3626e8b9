"""promtool: the alert rules load, and each alert fires and is silent as intended (``alerts``, one file for each group)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.prometheus import promtool

RULES = Path(__file__).resolve().parents[3] / "conf/prometheus/alerts.yaml"
CASES = sorted((Path(__file__).parent / "alerts").glob("*.yaml"))


def groups() -> dict[str, list[dict[str, Any]]]:
    return {g["name"]: g["rules"] for g in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]}


def expectations(path: Path) -> list[dict[str, Any]]:
    return [
        one for test in yaml.safe_load(path.read_text(encoding="utf-8"))["tests"] for one in test["alert_rule_test"]
    ]


def test_promtool_accepts_the_rules() -> None:
    assert f"SUCCESS: {sum(map(len, groups().values()))} rules found" in promtool("check", "rules", "--lint=all", RULES)


def test_each_group_has_its_file() -> None:
    assert {path.stem for path in CASES} == set(groups())


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_each_alert_is_expected_once_to_fire_and_once_to_be_silent(path: Path) -> None:
    found = expectations(path)
    names = {rule["alert"] for rule in groups()[path.stem]}
    assert {one["alertname"] for one in found if one["exp_alerts"]} == names
    assert {one["alertname"] for one in found if not one["exp_alerts"]} == names


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_each_alert_fires_and_is_silent_as_intended(path: Path, tmp_path: Path) -> None:
    """Severity and advice are constants of the rule; the file has what depends on the series: labels and summary."""
    rules = {rule["alert"]: rule for rule in groups()[path.stem]}
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    for test in content["tests"]:
        for one in test["alert_rule_test"]:
            rule = rules[one["alertname"]]
            for alert in one["exp_alerts"]:
                alert["exp_labels"] |= rule["labels"]
                alert["exp_annotations"]["advice"] = rule["annotations"]["advice"]
    case = tmp_path / path.name
    case.write_text(yaml.safe_dump({**content, "rule_files": [str(RULES)]}), encoding="utf-8")
    assert "SUCCESS" in promtool("test", "rules", case)
