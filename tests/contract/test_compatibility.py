"""The page of compatibility is that of the records, and shows no run that was not made."""

from __future__ import annotations

import re

from tests.compatibility.combinations import BRIDGE_TESTS, PYTHONS, ROOT, Record, records
from tests.compatibility.page import PAGE, page

PASSED = Record("bridge", "3.12.1", "", "", 40, 2, 0, "abc1234", "2026-11-29")
FAILED = Record("spark", "3.11.7", "21", "4.1.4", 40, 0, 3, "abc1234", "2026-11-30")


def test_the_page_is_that_of_the_records() -> None:
    """After a run: ``python -m tests.compatibility --show``."""
    assert PAGE.read_text(encoding="utf-8") == page(records())


def test_without_a_run_no_combination_has_a_result() -> None:
    text = page([])
    rows = [line for line in text.splitlines() if re.match(r"\| \d", line)]
    assert len(rows) > len(PYTHONS) + 8
    assert all(row.endswith("|  |  |  |  |") for row in rows)


def test_a_run_is_shown_with_its_versions_commit_and_date() -> None:
    text = page([PASSED, FAILED])
    assert "| 3.12.1 | passed | 40, 2 skipped | `abc1234` | 2026-11-29 |" in text
    assert "| 4.1.4 | 3.11.7 | 21 | **3 failed** | 40 | `abc1234` | 2026-11-30 |" in text
    assert "| 3.12 |  |" not in text
    assert text.count("passed |") == 1


def test_a_run_replaces_an_older_one_of_the_same_combination() -> None:
    assert PASSED.name == "bridge-python3.12.json"
    assert FAILED.name == "spark-python3.11-java21-spark4.1.json"


def test_the_records_are_of_supported_versions_and_of_a_commit() -> None:
    for record in records():
        assert record.python.rpartition(".")[0] in PYTHONS or record.python in PYTHONS
        assert record.passed > 0
        assert re.fullmatch(r"[0-9a-f]{7,40}(-dirty)?", record.commit)


def test_the_tests_of_the_bridge_exist() -> None:
    assert [path for path in BRIDGE_TESTS if not (ROOT / path).is_dir()] == []
