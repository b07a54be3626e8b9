"""What a suite's file says, before there is a table or Spark."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bridge.errors import ConfigError
from streaming.checkpoints import RESULT_COLUMNS, Verdict, result_rows
from streaming.suites import Suite, Suites

NULL, BETWEEN = "expect_column_values_to_not_be_null", "expect_column_values_to_be_between"


def entry(kind: str, **kwargs: Any) -> dict[str, Any]:
    return {"type": kind, "kwargs": kwargs}


def written(folder: Path, *entries: Any) -> Suites:
    (folder / "gx" / "expectations").mkdir(parents=True)
    (folder / "gx" / "great_expectations.yml").touch()
    body = json.dumps({"name": "s", "expectations": list(entries)})
    (folder / "gx" / "expectations" / "s.json").write_text(body, encoding="utf-8")
    return Suites(folder)


def one(folder: Path, *entries: Any) -> Suite:
    return written(folder, *entries).suite("s")


def test_rules_are_named_by_their_meta_else_by_type_and_columns_each_once(tmp_path: Path) -> None:
    suite = one(
        tmp_path,
        {**entry(NULL, column="a"), "meta": {"rule": "present"}, "severity": "warning"},
        entry(NULL, column="a"),
        entry(NULL, column="a", mostly=0.5),
        entry("expect_column_pair_values_to_be_equal", column_A="a", column_B="b"),
        entry("expect_compound_columns_to_be_unique", column_list=["a", "b"]),
        entry("expect_table_row_count_to_be_between", min_value=1),
        {**entry(NULL, column="b"), "meta": {"rule": "present"}},
    )
    assert [rule.name for rule in suite.rules] == [
        "present",
        "expect_column_values_to_not_be_null(a)",
        "expect_column_values_to_not_be_null(a)#2",
        "expect_column_pair_values_to_be_equal(a, b)",
        "expect_compound_columns_to_be_unique(a, b)",
        "expect_table_row_count_to_be_between",
        "present#2",
    ]
    assert [rule.severity for rule in suite.rules] == ["warning", *["critical"] * 6]
    assert suite.unsplit == ("expect_table_row_count_to_be_between",)


def test_a_suite_travels_to_another_process(tmp_path: Path) -> None:
    suite = one(tmp_path, entry(NULL, column="a"), entry(BETWEEN, column="b", min_value=1))
    assert pickle.loads(pickle.dumps(suite)) == suite
    assert len(pickle.dumps(suite)) < 2_000


def test_a_suite_loads_in_a_process_whose_main_module_has_no_file(tmp_path: Path) -> None:
    """As the demo starts its processes; pyspark would end it, exit code 0, where grpc is not installed."""
    written(tmp_path, entry(NULL, column="a"))
    code = (
        "import sys; from pathlib import Path; from streaming.suites import Suites; "
        f"print(Suites(Path({str(tmp_path)!r})).suite('s').name, hasattr(sys.modules['__main__'], '__file__'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "s False\n"


def test_the_project_is_found_with_and_without_the_folder_gx(tmp_path: Path) -> None:
    suites = written(tmp_path, entry(NULL, column="a"))
    assert suites.names() == Suites(tmp_path / "gx").names() == ("s",)
    assert Suites(None).names() == ()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (entry("expect_column_values_to_be_betwen"), f"did you mean {BETWEEN}"),
        (entry("expect_sunshine"), "import the module that defines it"),
        (entry(BETWEEN, colum="a", min_value=1), "column: field required"),
        (entry(BETWEEN, colum="a", min_value=1), "colum: extra fields not permitted"),
        (entry(BETWEEN, column="a"), "min_value and max_value cannot both be None"),
        (entry(NULL, column="a", mostly=3), "mostly: ensure this value is less than or equal to 1"),
        (
            entry("expect_column_values_to_match_strftime_format", column="a", strftime_format="%D"),
            "bad directive",
        ),
        (
            {**entry(NULL, column="a"), "severity": "fatal"},
            "'fatal'. Must be one of: critical, warning, info",
        ),
        ({**entry(NULL, column="a"), "severty": "info"}, "severty"),
        ({"expectation_type": NULL, "kwargs": {}}, "has no `type`"),
        ({"type": NULL, "kwargs": None}, "kwargs must be a dict"),
        (7, "has no `type`"),
    ],
)
def test_a_wrong_expectation_is_refused_in_one_line_with_its_location(wrong: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        one(tmp_path, entry(NULL, column="a"), wrong)
    text = str(caught.value)
    assert says in text
    assert f"suite 's' ({tmp_path / 'gx' / 'expectations' / 's.json'}): expectations[1]: " in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("text", "says"),
    [("{", "line 1 column 2"), ("[]", "no list `expectations`"), ('{"expectations": {}}', "no list `expectations`")],
)  # fmt: skip
def test_a_file_that_is_not_a_suite_is_refused_by_name(text: str, says: str, tmp_path: Path) -> None:
    suites = written(tmp_path)
    path = tmp_path / "gx" / "expectations" / "s.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        suites.suite("s")
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_what_is_not_there_is_refused_with_what_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"suite 'readings' does not exist in .*; existing suites: s — save it"):
        written(tmp_path).suite("readings")
    with pytest.raises(ConfigError, match="suite 'readings' does not exist: no folder"):
        Suites(None).suite("readings")
    with pytest.raises(ConfigError, match=r"absent is not a Great Expectations project.*get_context"):
        Suites(tmp_path / "absent").names()


def test_all_columns_that_a_table_lacks_are_named_at_once(tmp_path: Path) -> None:
    suite = one(
        tmp_path,
        entry(NULL, column="a"),
        entry(NULL, column="nested.field"),
        entry("expect_column_max_to_be_between", column="aa", max_value=1),
        entry("expect_column_pair_values_to_be_equal", column_A="a", column_B="A"),
        # A column that is not there is what these are about.
        entry("expect_column_to_exist", column="later"),
        entry("expect_table_columns_to_match_ordered_list", column_list=["a", "later"]),
    )
    with pytest.raises(ConfigError) as caught:
        suite.check({"a": "int", "nested": "struct<field: int>"})
    text = str(caught.value)
    assert "rule 'expect_column_max_to_be_between(aa)': the table has no column 'aa'" in text
    assert "the table has no column 'A'" in text
    assert text.count("the table has no column") == 2


def test_verdicts_are_rows_of_the_table_of_results(tmp_path: Path) -> None:
    suite = one(tmp_path, entry(NULL, column="a"))
    (row,) = result_rows([Verdict(suite.rules[0], True, 3, 0, "")], suite, "t", None, None)
    found = dict(zip((name for name, _, _ in RESULT_COLUMNS), row, strict=True))
    assert found["rule"] == "expect_column_values_to_not_be_null(a)"
    assert (found["success"], found["evaluated"], found["unexpected"]) == (True, 3, 0)
