"""The page docs/reference/compatibility.md, generated from the records in ``results``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.compatibility.combinations import PYTHONS, Record
from tests.matrix.environments import CELLS

__all__ = ["PAGE", "page"]

PAGE: Final = Path(__file__).parents[2] / "docs/reference/compatibility.md"
_JAVAS: Final = ("17", "21")
_HEAD: Final = """\
# Compatibility

The tables say what was run, with commit and date. This page is generated from the records of the runs (`make compatibility`).
**passed** means that no test failed. An empty cell was not run.

Pulsebridge needs Python 3.10–3.13. The Spark job needs Java 17 or 21 as well, and Spark 4.0, 4.1 or 4.2. [Sparks and clusters](../operate/spark.md) lists the features of each Spark, [MQTT brokers](../operate/brokers.md) the brokers.
"""
_BRIDGE: Final = """
## The bridge

The unit tests of ingest, push and HTTP, with the locked packages, without Spark and Java: `make compatibility ARGS="--python 3.12"`.

| Python | result | tests | commit | date |
|---|---|---|---|---|
"""
_SPARK: Final = """
## Source and sink on Spark

The tests of source and sink with a real Pulsar: `make compatibility ARGS="--part spark --spark 4.1 --python 3.12"`, on the Java of `--java` or `JAVA_HOME`.

| Spark | Python | Java | result | tests | commit | date |
|---|---|---|---|---|---|---|
"""


def page(found: Sequence[Record]) -> str:
    """Return the page: a row for each combination that is promised, and for each other one that was run."""
    bridge = {_minor(one.python): one for one in found if one.part == "bridge"}
    spark = {(_minor(one.spark), _minor(one.python), one.java): one for one in found if one.part == "spark"}
    wanted = {(_minor(cell.spark), cell.python, java) for cell in CELLS for java in _JAVAS} | set(spark)
    rows = [_row([name], bridge.get(name), 0) for name in PYTHONS]
    more = [_row(list(key), spark.get(key), 2) for key in sorted(wanted, key=_order)]
    return _HEAD + _BRIDGE + "".join(rows) + _SPARK + "".join(more)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _order(key: tuple[str, str, str]) -> tuple[list[int], ...]:
    return tuple([-int(number) for number in part.split(".")] if part else [0] for part in key)


def _row(versions: list[str], record: Record | None, at: int) -> str:
    """Return a row; ``at`` is the column after which the exact versions stand."""
    if record is None:
        return f"| {' | '.join([*versions, '', '', '', ''])} |\n"
    exact = [record.python] if at == 0 else [record.spark, record.python, record.java]
    result = f"**{record.failed} failed**" if record.failed else "passed"
    tests = f"{record.passed}" + (f", {record.skipped} skipped" if record.skipped else "")
    return f"| {' | '.join([*exact, result, tests, f'`{record.commit}`', record.date])} |\n"
