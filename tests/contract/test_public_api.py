"""Of Spark, py4j, Delta and Great Expectations the code uses public names, but for a few named modules."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.test_sources_of_truth import ROOT, modules, tracked

LIBRARIES = {"pyspark", "delta", "great_expectations", "py4j"}
EXCEPT = {
    "sources/spark_internals.py": "the face of a listener, the class of readers that give rows, the files of a checkpoint",
    "streaming/row_conditions.py": "the registry and the graph of Great Expectations",
}
"""The other names of these modules and the reasons; each module explains it in its docstring."""
GX = re.compile(
    r"great_expectations(\.(checkpoint|exceptions|execution_engine|expectations(\.expectation|\.metrics|\.row_conditions)?))?"
)
"""What the documentation of Great Expectations imports from."""
TEXTS = re.compile(r"_(jvm|gateway|jsparkSession|jdf|jsc|sc|java_\w+|SimpleStream\w+)|(.*/)?offsets/.*|.*/offsets|.*LogStore.*", re.DOTALL)  # fmt: skip
"""Private names in ``getattr`` and the like, the log of offsets in a checkpoint, and a log store of one's own."""
SUFFIXED = {"_asdict", "_replace", "_fields", "_exit"}
"""Public in spite of their first letter: of named tuples and of ``os``."""


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in SUFFIXED


def own_names(trees: list[ast.Module]) -> set[str]:
    """Return the names that these modules define."""
    found = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return found


def foreign(tree: ast.Module, own: set[str]) -> Iterator[str]:
    """Give each use of a name that is neither public nor one of our own."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Attribute):
            names = [node.attr] if node.attr not in own or TEXTS.fullmatch(node.attr) else []
        elif isinstance(node, ast.ImportFrom | ast.Import):
            base = getattr(node, "module", None) or ""
            for full in [f"{base}.{alias.name}".strip(".") for alias in node.names]:
                if full.partition(".")[0] in LIBRARIES:
                    names += full.split(".")
            if base.startswith("great_expectations") and not GX.fullmatch(base):
                yield f"{node.lineno}: {base}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and TEXTS.fullmatch(node.value):
            yield f"{node.lineno}: {node.value!r}"
        yield from (f"{node.lineno}: {name}" for name in names if private(name))


def uses(path: Path, own: set[str]) -> list[str]:
    return list(foreign(ast.parse(path.read_text(encoding="utf-8")), own))


@pytest.fixture(scope="module")
def own() -> set[str]:
    return own_names([ast.parse(path.read_text(encoding="utf-8")) for path in modules()])


def test_only_named_modules_use_what_is_not_public(own: set[str]) -> None:
    examples = [p for p in tracked() if p.suffix == ".py" and p.relative_to(ROOT).parts[0] in ("examples", "notebooks")]  # fmt: skip
    found = {str(path.relative_to(ROOT)): uses(path, own) for path in [*modules(), *examples]}
    assert {name: lines for name, lines in found.items() if lines and name not in EXCEPT} == {}
    assert [name for name in EXCEPT if not found[name]] == [], "these need no exception any more"


@pytest.mark.parametrize(
    "code",
    [
        "spark._jvm",
        "frame._jdf.queryExecution()",
        "getattr(spark, '_jsparkSession')",
        "from pyspark.sql import _private",
        "from pyspark._globals import x",
        "import pyspark.sql._typing",
        "from great_expectations.validator.validator import Validator",
        "open(f'{checkpoint}/offsets/{n}')",
        "conf('spark.delta.logStore.class', 'our.LogStore')",
    ],
)
def test_what_it_is_for_is_found(code: str, own: set[str]) -> None:
    assert list(foreign(ast.parse(code), own))


def test_what_is_public_is_not_found(own: set[str]) -> None:
    code = "row._asdict(); from great_expectations import expectations as gxe; from pyspark.sql import functions as F"
    assert list(foreign(ast.parse(code), own)) == []
