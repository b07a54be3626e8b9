"""docs/guides/sparkplug.md lists the statements of the specification with the tests that are marked with them, and no others."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = (ROOT / "docs/guides/sparkplug.md").read_text(encoding="utf-8")


def marked() -> set[tuple[str, str]]:
    """Return each statement that a test is marked with, and the test."""
    found = set()
    for path in sorted((ROOT / "tests").glob("*/sparkplug/test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.FunctionDef):
                continue
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.tck":
                    test = f"{path.relative_to(ROOT).as_posix()}::{node.name}"
                    found |= {(str(ast.literal_eval(one)), test) for one in mark.args}
    return found


def test_the_list_and_the_marks_agree() -> None:
    listed = re.findall(r"^\| `(tck-id-[a-z0-9-]+)` \| `([^`]+)` \|$", DOCUMENT, re.MULTILINE)
    assert len(listed) == len(set(listed)) > 80
    assert set(listed) == marked()


def test_what_is_not_fulfilled_has_no_test() -> None:
    open_ = set(re.findall(r"`(tck-id-[a-z0-9-]+)`", DOCUMENT.partition("Not fulfilled:")[2]))
    assert open_
    assert open_.isdisjoint(statement for statement, _ in marked())
