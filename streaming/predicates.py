"""Compiles the row rules of a Great Expectations suite into Spark SQL predicates, without importing it.

It decides which rows pass, one predicate per expectation that has a row form; the others are verdicts on the whole
table only. The verdicts are made by ``streaming.expectations`` from the same suite, and a test holds both together.
As in Great Expectations a null passes every rule on one column but that which forbids nulls, and ``mostly`` moves the verdict
of the table, not the row's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bridge.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["ROW_FORMS", "Rule", "Suite", "failed_rules", "load_suite", "parse_suite"]

Kwargs = Mapping[str, Any]


@dataclass(frozen=True)
class Rule:
    """One expectation of a suite: its name among the failed rules, and its row form (None: verdict only)."""

    name: str
    expectation: str
    columns: tuple[str, ...]
    predicate: str | None
    """Spark SQL, true where the row passes; never null."""


@dataclass(frozen=True)
class Suite:
    """A suite as it stands in its file, and its rules in order."""

    name: str
    body: Mapping[str, Any]
    rules: tuple[Rule, ...]

    @property
    def row_rules(self) -> tuple[Rule, ...]:
        """The rules that split rows."""
        return tuple(rule for rule in self.rules if rule.predicate is not None)

    @property
    def kinds(self) -> dict[str, str]:
        """Return, for a line of log, which rules split rows and which are verdicts on the table only."""
        only = [rule.name for rule in self.rules if rule.predicate is None]
        return {
            "name": self.name,
            "split_rows": ", ".join(rule.name for rule in self.row_rules) or "none",
            "verdicts_only": ", ".join(only) or "none",
        }


def load_suite(path: Path) -> Suite:
    """Read a suite in Great Expectations' own JSON. Raises ConfigError naming the file and all problems."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise ConfigError(
            f"suite {path}: {e}", remedy="see conf/expectations/silver.json for an example"
        ) from e
    return parse_suite(body, str(path))


def parse_suite(body: object, where: str) -> Suite:
    """Compile a suite. Raises ConfigError listing all problems."""
    if not isinstance(body, Mapping) or not isinstance(body.get("expectations"), list):
        raise ConfigError(
            f"{where} is no suite: it has no list `expectations`", remedy="see conf/expectations/"
        )
    rules: list[Rule] = []
    problems: list[str] = []
    for n, entry in enumerate(body["expectations"]):
        try:
            rules.append(_rule(entry))
        except (ValueError, KeyError, TypeError, re.error) as e:
            problems.append(
                f"expectations[{n}]: {f'kwargs.{e.args[0]} is missing' if isinstance(e, KeyError) else e}"
            )
    names = [rule.name for rule in rules]
    problems += [f"two rules are named {name!r}" for name in sorted({n for n in names if names.count(n) > 1})]
    if problems:
        raise ConfigError(f"{where}: " + "; ".join(problems), remedy="correct the suite")
    return Suite(str(body.get("name", "suite")), body, tuple(rules))


def failed_rules(suite: Suite) -> Column:
    """Return the column with the names of the row rules that a row fails, in the suite's order."""
    from pyspark.sql import functions as F

    checks = [F.when(~F.expr(rule.predicate or "true"), F.lit(rule.name)) for rule in suite.row_rules]
    return F.array_compact(F.array(*checks)) if checks else F.array().cast("array<string>")


def _rule(entry: Any) -> Rule:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("type"), str):
        raise ValueError("has no `type`")
    expectation, kwargs = entry["type"], entry.get("kwargs", {})
    columns = tuple(
        kwargs[k] for k in ("column", "column_A", "column_B") if isinstance(kwargs.get(k), str)
    ) or tuple(kwargs.get("column_list", ()))
    given = (entry.get("meta") or {}).get("rule")
    name = given or "_".join((*columns, expectation.removeprefix("expect_")))
    compile_row = ROW_FORMS.get(expectation)
    predicate = None if compile_row is None else _conditional(compile_row(kwargs), kwargs)
    return Rule(str(name), expectation, columns, predicate)


def _conditional(predicate: str, kwargs: Kwargs) -> str:
    condition = kwargs.get("row_condition")
    if condition is None:
        return f"coalesce({predicate}, true)"
    if not isinstance(condition, str) or kwargs.get("condition_parser") != "spark":
        raise ValueError('row_condition must be Spark SQL with "condition_parser": "spark"')
    # A row for which the condition is null is not judged, as in a filter.
    return f"(NOT coalesce(({condition}), false) OR coalesce({predicate}, true))"


def _literal(value: Any) -> str:
    if value is None:
        raise ValueError("a null cannot be compared")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return f"{value!r}D" if isinstance(value, float) else str(value)
    return "'" + str(value).replace("\\", "\\\\").replace("'", "\\'") + "'"


def _name(column: str) -> str:
    return "`" + column.replace("`", "``") + "`"


def _bounds(subject: str, kwargs: Kwargs) -> str:
    low, high = kwargs.get("min_value"), kwargs.get("max_value")
    if low is None and high is None:
        raise ValueError("give min_value, max_value or both")
    parts = []
    if low is not None:
        parts.append(f"{subject} {'>' if kwargs.get('strict_min') else '>='} {_bound(low)}")
    if high is not None:
        parts.append(f"{subject} {'<' if kwargs.get('strict_max') else '<='} {_bound(high)}")
    return " AND ".join(parts)


def _bound(value: Any) -> str:
    """Return a bound as SQL; text is a time, and said to be one, so that no text is compared with text."""
    if not isinstance(value, str):
        return _literal(value)
    try:
        datetime.fromisoformat(value)
    except ValueError as e:
        raise ValueError(f"bound {value!r} is neither a number nor an ISO 8601 time") from e
    return f"TIMESTAMP {_literal(value)}"


def _not_null(kwargs: Kwargs) -> str:
    return f"{_name(kwargs['column'])} IS NOT NULL"


def _null(kwargs: Kwargs) -> str:
    return f"{_name(kwargs['column'])} IS NULL"


def _between(kwargs: Kwargs) -> str:
    return _bounds(_name(kwargs["column"]), kwargs)


def _lengths_between(kwargs: Kwargs) -> str:
    return _bounds(f"length({_name(kwargs['column'])})", kwargs)


def _length_equal(kwargs: Kwargs) -> str:
    return f"length({_name(kwargs['column'])}) = {_literal(kwargs['value'])}"


def _in_set(kwargs: Kwargs) -> str:
    values: Sequence[Any] = kwargs["value_set"]
    if not values:
        raise ValueError("value_set is empty")
    return f"{_name(kwargs['column'])} IN ({', '.join(map(_literal, values))})"


def _regex(kwargs: Kwargs) -> str:
    pattern = kwargs["regex"]
    re.compile(pattern)
    return f"{_name(kwargs['column'])} RLIKE {_literal(pattern)}"


def _pair_greater(kwargs: Kwargs) -> str:
    _both_missing_only(kwargs)
    sign = ">=" if kwargs.get("or_equal") else ">"
    return f"{_name(kwargs['column_A'])} {sign} {_name(kwargs['column_B'])}"


def _pair_equal(kwargs: Kwargs) -> str:
    _both_missing_only(kwargs)
    # A null equals a null and nothing else, as Great Expectations has it on Spark.
    return f"{_name(kwargs['column_A'])} <=> {_name(kwargs['column_B'])}"


def _both_missing_only(kwargs: Kwargs) -> None:
    if kwargs.get("ignore_row_if", "both_values_are_missing") != "both_values_are_missing":
        raise ValueError('ignore_row_if: only "both_values_are_missing" splits rows')


def _negated(form: Callable[[Kwargs], str]) -> Callable[[Kwargs], str]:
    return lambda kwargs: f"NOT ({form(kwargs)})"


ROW_FORMS: Final[Mapping[str, Callable[[Kwargs], str]]] = {
    "expect_column_values_to_not_be_null": _not_null,
    "expect_column_values_to_be_null": _null,
    "expect_column_values_to_be_between": _between,
    "expect_column_values_to_be_in_set": _in_set,
    "expect_column_values_to_not_be_in_set": _negated(_in_set),
    "expect_column_values_to_match_regex": _regex,
    "expect_column_values_to_not_match_regex": _negated(_regex),
    "expect_column_value_lengths_to_be_between": _lengths_between,
    "expect_column_value_lengths_to_equal": _length_equal,
    "expect_column_pair_values_a_to_be_greater_than_b": _pair_greater,
    "expect_column_pair_values_to_be_equal": _pair_equal,
}
"""The expectations that split rows; any other is a verdict on the table only."""
