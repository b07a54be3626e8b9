"""Expectation suites of a Great Expectations project: they split rows and give verdicts on tables.

The project is a folder that Great Expectations itself and notebooks open with
``great_expectations.get_context(mode="file", project_root_dir=...)``. It has one suite per table, as
``ExpectationSuite.save`` writes it. A suite does two things:

* ``Suite.validated`` marks the rows of a batch, by the conditions that Great Expectations creates for its map
  expectations. Severity decides: ``critical`` goes to ``_failed_rules``, ``warning`` to ``_warnings``, and ``info``
  marks nothing. ``mostly`` does not change a row's marks.
* ``streaming.checkpoints`` runs the table's Checkpoint on rows.

Great Expectations is imported at the first read of a suite.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bridge.errors import ConfigError, MissingExtraError
from streaming.modules import load_sources, sources_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["FAILED", "WARNINGS", "Rule", "Suite", "Suites", "great_expectations", "line_of", "project_folder"]

FAILED: Final = "_failed_rules"
"""Column ``array<string>``, never null: the critical rules that the row fails, in the suite's order."""
WARNINGS: Final = "_warnings"
"""Column ``array<string>``, never null: the same for rules with severity ``warning``."""

_COLUMN_KEYS: Final = ("column", "column_A", "column_B", "column_list")
_MOST_DOUBLING: Final = 4
"""Each rule with a window over some of the rows doubles the plan of a batch."""
_built: dict[tuple[Any, ...], tuple[_Mark, ...]] = {}
"""Conditions by suite, schema and Spark context, so that a batch does not run Great Expectations."""


@dataclass(frozen=True)
class Rule:
    """One expectation of a suite. ``name``: ``meta.rule`` of the expectation, else its type and columns."""

    name: str
    expectation: str
    columns: tuple[str, ...]
    severity: str
    """``critical``, ``warning`` or ``info``."""
    splits: bool
    """Whether Great Expectations has a row condition for it; if not, it gives only a verdict."""
    id: str | None = None

    @property
    def marks(self) -> bool:
        """Whether a failing row gets the rule's name."""
        return self.splits and self.severity != "info"


@dataclass(frozen=True)
class Suite:
    """A suite of a project. It is small and picklable, and works in another process."""

    name: str
    file: str
    text: str
    """The expectations as JSON, as in the file."""
    rules: tuple[Rule, ...]
    modules: tuple[str, ...] = ()
    """Modules of custom expectations, also imported in another process."""
    sources: tuple[tuple[str, str], ...] = ()
    """Text of modules that another process cannot import: files of ``streaming.modules``."""

    @property
    def unsplit(self) -> tuple[str, ...]:
        """Names of the rules that give only a verdict. Great Expectations has no row condition for them."""
        return tuple(rule.name for rule in self.rules if not rule.splits)

    def check(self, columns: Mapping[str, str], spark: SparkSession | None = None) -> None:
        """Check the suite against a table's columns (name to Spark SQL type).

        With a session, each rule is also evaluated on one sample row whose texts are ``'x'``. Devices can send any
        text, and a rule that raises an error would fail the batch. Raises ConfigError that names all rules that cannot
        work on this table.
        """
        problems = [
            f"rule {rule.name!r}: the table has no column {name!r}"
            for rule in self.rules
            for name in rule.columns
            if name not in columns and name.partition(".")[0].strip("`") not in columns
        ]
        if not problems and spark is not None:
            row = spark.sql(f"SELECT {', '.join(_sample(name, kind) for name, kind in columns.items())}")
            problems = list(_failures(_marks(self, row), row))
        if problems:
            raise self._error(problems, "correct the suite, or the table's columns")

    def validated(self, rows: DataFrame) -> DataFrame:
        """Return the rows of a batch with the columns ``_failed_rules`` and ``_warnings``.

        No job runs. A rule with a window (unique values, for example) covers only this batch. If such a rule has a row
        condition, its plan reads ``rows`` twice, so persist them before.
        A user-defined function in a rule receives every row, even one outside of its row condition.
        Raises ConfigError if a rule cannot be applied to these columns.
        """
        from pyspark.sql import functions as F

        found: dict[str, list[Column]] = {"critical": [], "warning": []}
        extra = []
        for n, mark in enumerate(_marks(self, rows)):
            flag = mark.flag
            if mark.doubles:
                extra.append(f"_window_rule_{n}")
                rows, flag = mark.added(rows, extra[-1]), F.col(extra[-1])
            found[mark.rule.severity].append(F.when(flag, F.lit(mark.rule.name)))
        failed, warned = (F.array_compact(F.array(*names)).cast("array<string>") for names in found.values())
        return rows.withColumns({FAILED: failed, WARNINGS: warned}).drop(*extra)

    def _error(self, problems: Iterable[str], remedy: str) -> ConfigError:
        return ConfigError(f"suite {self.name!r} ({self.file}): {'; '.join(problems)}", remedy=remedy)


class Suites:
    """The suites of a project: a folder with ``great_expectations.yml``, in it or in ``gx``."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def names(self) -> tuple[str, ...]:
        """Return the names of the suites; none without a folder. Raises ConfigError if the folder has no project."""
        if self.folder is None:
            return ()
        found = project_folder(self.folder) / "expectations"
        return tuple(sorted(p.relative_to(found).as_posix()[: -len(".json")] for p in found.rglob("*.json")))

    def suite(self, name: str) -> Suite:
        """Return a suite as it is in its file now. Raises ConfigError that names the file and all its problems."""
        names = self.names()
        if self.folder is None:
            raise ConfigError(
                f"suite {name!r} does not exist: no folder of a Great Expectations project is set",
                remedy="set streaming.suites",
            )
        if name not in names:
            raise ConfigError(
                f"suite {name!r} does not exist in {self.folder}; existing suites: {', '.join(names) or 'none'}",
                remedy="save it with ExpectationSuite.save()",
            )
        return _parsed(name, project_folder(self.folder) / "expectations" / f"{name}.json")


@dataclass(frozen=True)
class _Mark:
    """A rule's marks on rows. ``doubles``: its window spans some of the rows, so the others need a separate plan."""

    rule: Rule
    domain: Column | None
    unexpected: Column
    doubles: bool

    @property
    def flag(self) -> Column:
        """True for a row that fails. The condition is evaluated only for rows of the domain."""
        from pyspark.sql import functions as F

        return self.unexpected if self.domain is None else F.when(self.domain, self.unexpected)

    def added(self, rows: DataFrame, name: str) -> DataFrame:
        """Return the rows with the flag as a column."""
        from pyspark.sql import functions as F

        if self.domain is None or not self.doubles:
            return rows.withColumn(name, self.flag)
        inside = F.coalesce(self.domain, F.lit(False))
        marked = rows.where(inside).withColumn(name, self.unexpected)
        return marked.unionAll(rows.where(~inside).withColumn(name, F.lit(False)))


def _marks(suite: Suite, rows: DataFrame) -> tuple[_Mark, ...]:
    # A column belongs to a JVM, and a process may start a second one. Spark Connect has no context.
    context = getattr(rows.sparkSession, "sparkContext", None)
    key = (suite, rows.schema.simpleString(), context)
    if key not in _built:
        if len(_built) >= 64:
            _built.clear()
        _built[key] = _build(suite, rows)
    return _built[key]


def _build(suite: Suite, rows: DataFrame) -> tuple[_Mark, ...]:
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    great_expectations(suite)
    from streaming.row_conditions import load_expectation, row_condition

    marks: list[_Mark] = []
    problems: list[str] = []
    for rule, entry in zip(suite.rules, json.loads(suite.text), strict=True):
        if not rule.marks:
            continue
        try:
            made = row_condition(load_expectation(entry), rows.schema)
            mark = _Mark(rule, made.domain, made.unexpected, False)
            try:
                _ = rows.where(mark.flag).select(F.lit(1)).schema  # Spark Connect analyses for a new schema
            except AnalysisException:
                # Spark rejects a window in a filter.
                mark = _Mark(rule, made.domain, made.unexpected, made.domain is not None and not made.independent)
                _ = mark.added(rows, "_flag").schema
            marks.append(mark)
        except Exception as e:  # noqa: BLE001 — of Spark, Great Expectations or a custom metric: the suite is invalid
            problems.append(f"rule {rule.name!r}: {line_of(e)}")
    doubling = [mark.rule.name for mark in marks if mark.doubles]
    if len(doubling) > _MOST_DOUBLING:
        problems.append(f"at most {_MOST_DOUBLING} rules can have a window and a row condition: {doubling}")
    if problems:
        raise suite._error(problems, "correct the suite, or the table's columns")
    return tuple(marks)


def _failures(marks: Sequence[_Mark], row: DataFrame) -> Iterable[str]:
    for mark in marks:
        try:
            mark.added(row, "_flag").select("_flag").collect()
        except Exception as e:  # noqa: BLE001 — any error would fail a batch
            yield f"rule {mark.rule.name!r} raises an error for the text 'x': {line_of(e)}"


def _sample(name: str, kind: str) -> str:
    """Return a value of a type as Spark SQL. Its text is not a number, time or JSON; nested types have null."""
    base = kind.strip().lower()
    value = "0"
    if base.startswith(("string", "varchar", "char")):
        value = "'x'"
    elif base.startswith(("timestamp", "date")):
        value = "'2000-01-01'"
    elif base.startswith(("struct", "array", "map", "binary", "variant", "interval")):
        value = "NULL"
    quoted = name.replace("`", "``")
    return f"CAST({value} AS {kind}) AS `{quoted}`"


def project_folder(folder: Path) -> Path:
    """Return the folder with ``great_expectations.yml``: this one or its ``gx``. Raises ConfigError without one."""
    for found in (folder, folder / "gx"):
        if (found / "great_expectations.yml").is_file():
            return found
    raise ConfigError(
        f"{folder} is not a Great Expectations project: neither it nor its folder gx has great_expectations.yml",
        remedy='create one: great_expectations.get_context(mode="file", project_root_dir=...)',
    )


def _parsed(name: str, path: Path) -> Suite:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise ConfigError(f"suite {name!r} ({path}) cannot be read: {e}", remedy="correct the file") from e
    entries = body.get("expectations") if isinstance(body, dict) else None
    if not isinstance(entries, list):
        raise ConfigError(
            f"suite {name!r} ({path}) has no list `expectations`",
            remedy="save it with ExpectationSuite.save()",
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        great_expectations()
        from streaming.row_conditions import has_row_condition, load_expectation

        rules: list[Rule] = []
        modules: set[str] = set()
        problems: list[str] = []
        for n, entry in enumerate(entries):
            try:
                if not isinstance(entry, dict) or "type" not in entry:
                    raise ValueError("has no `type` (a suite of a version before 1.0?)")
                made = load_expectation(entry)
                rules.append(_rule(made, has_row_condition(made), {rule.name for rule in rules}))
            except ValueError as e:
                problems.append(f"expectations[{n}]: {e}")
            else:
                modules.add(type(made).__module__)
    custom = sorted(m for m in modules if m.partition(".")[0] not in ("great_expectations", "__main__"))
    suite = Suite(name, str(path), json.dumps(entries), tuple(rules), tuple(custom), sources_of(custom))
    if problems:
        raise suite._error(problems, "correct the file, or save the suite with ExpectationSuite.save()")
    return suite


def _rule(expectation: Any, splits: bool, used: set[str]) -> Rule:
    kind, kwargs = expectation.expectation_type, expectation.configuration.kwargs
    columns: list[str] = []
    for key in _COLUMN_KEYS:
        if key in type(expectation).domain_keys and kwargs.get(key):
            columns += [kwargs[key]] if isinstance(kwargs[key], str) else kwargs[key]
    given = (expectation.meta or {}).get("rule")
    base = str(given or (f"{kind}({', '.join(columns)})" if columns else kind))
    name = next(n for n in (base, *(f"{base}#{i}" for i in range(2, len(used) + 2))) if n not in used)
    return Rule(name, kind, tuple(columns), expectation.severity.value, splits, expectation.id)


def line_of(e: Exception) -> str:
    """Return the most specific line of an error, at most 300 characters."""
    lines = [line.strip() for line in str(e).splitlines() if line.strip()] or [type(e).__name__]
    # An error of a Python worker begins with a sentence and ends with the error.
    raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (raised[-1] if raised and lines[0].endswith(":") else lines[0])[:300]


def great_expectations(suite: Suite | None = None) -> Any:
    """Import the modules of a suite's expectations and return Great Expectations."""
    # Read at the package's import: it sends no analytics.
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    # Its loggers set their own levels. Relevant messages are raised, or are in the verdict.
    log = logging.getLogger("great_expectations")
    log.propagate = False
    if not log.handlers:
        log.addHandler(logging.NullHandler())
    try:
        with _main_with_file():
            import great_expectations as gx
    except ModuleNotFoundError as e:
        raise MissingExtraError("a suite needs great_expectations", remedy="pip install 'pulsebridge[quality]'") from e
    if suite is not None:
        load_sources(suite.sources)
        for module in suite.modules:
            importlib.import_module(module)
    return gx


@contextmanager
def _main_with_file() -> Iterator[None]:
    """Give the main module a file for the import. Pyspark 4.2 takes a main module without one (``python -c``) for its
    doctests. Then ``pyspark.sql.connect``, which Great Expectations imports, ends the process if grpc is not installed.
    """
    main = sys.modules["__main__"]
    if hasattr(main, "__file__"):
        yield
        return
    main.__file__ = ""
    try:
        yield
    finally:
        del main.__file__
