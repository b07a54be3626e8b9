from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bridge.errors import ConfigError
from bridge.settings.loading import conf_path
from streaming.predicates import Suite, load_suite, parse_suite


def one(expectation: str, **kwargs: Any) -> Suite:
    return parse_suite({"name": "s", "expectations": [{"type": expectation, "kwargs": kwargs}]}, "s.json")


def test_the_shipped_suite_says_which_rules_split_rows() -> None:
    suite = load_suite(conf_path("expectations/silver.json"))
    assert "glucose_range" in [r.name for r in suite.row_rules]
    assert [r.name for r in suite.rules if r.predicate is None] == ["some_rows"]


@pytest.mark.parametrize(
    ("suite", "predicate"),
    [
        (one("expect_column_values_to_not_be_null", column="a"), "coalesce(`a` IS NOT NULL, true)"),
        (one("expect_column_values_to_be_between", column="a", min_value=1, max_value=2.5, strict_max=True),
         "coalesce(`a` >= 1 AND `a` < 2.5D, true)"),
        (one("expect_column_values_to_be_in_set", column="a", value_set=["x", "o'clock"]),
         "coalesce(`a` IN ('x', 'o\\'clock'), true)"),
        (one("expect_column_values_to_match_regex", column="a", regex=r"^\d+$"),
         "coalesce(`a` RLIKE '^\\\\d+$', true)"),
        (one("expect_column_pair_values_a_to_be_greater_than_b", column_A="a", column_B="b", or_equal=True),
         "coalesce(`a` >= `b`, true)"),
        (one("expect_column_values_to_be_null", column="a", row_condition="b = 1", condition_parser="spark"),
         "(NOT coalesce((b = 1), false) OR coalesce(`a` IS NULL, true))"),
    ],
)  # fmt: skip
def test_a_row_rule_compiles(suite: Suite, predicate: str) -> None:
    assert suite.rules[0].predicate == predicate


def test_an_expectation_without_a_row_form_is_a_verdict_only() -> None:
    suite = one("expect_column_mean_to_be_between", column="a", min_value=1)
    assert suite.row_rules == ()
    assert suite.rules[0].name == "a_column_mean_to_be_between"


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "no list"),
        ({"expectations": [{"kwargs": {}}]}, "has no `type`"),
        ({"expectations": [{"type": "expect_column_values_to_not_be_null", "kwargs": {}}]}, "kwargs.column"),
        ({"expectations": [{"type": "expect_column_values_to_be_between", "kwargs": {"column": "a"}}]}, "min_value"),
        ({"expectations": [{"type": "expect_column_values_to_match_regex", "kwargs": {"column": "a", "regex": "("}}]},
         "expectations[0]"),
        ({"expectations": [{"type": "x", "meta": {"rule": "r"}}, {"type": "y", "meta": {"rule": "r"}}]}, "'r'"),
        ({"expectations": [{"type": "expect_column_values_to_be_null",
                            "kwargs": {"column": "a", "row_condition": "a", "condition_parser": "pandas"}}]}, "Spark SQL"),
    ],
)  # fmt: skip
def test_a_wrong_suite_is_refused_by_place(body: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_suite(body, "conf/x.json")
    assert "conf/x.json" in str(caught.value)
    assert named in str(caught.value)


def test_a_suite_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent"):
        load_suite(tmp_path / "absent.json")
