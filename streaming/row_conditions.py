"""Great Expectations' own conditions on a row, as Spark columns.

Only this module uses parts of Great Expectations outside its published API. They are the registry of metrics, the
graph that resolves a metric, and the Spark engine's filters. It names nothing that starts with an underscore. A test
compares the result with Great Expectations for all its map expectations, so that an upgrade cannot change it silently.

No session and no data are needed. Great Expectations gets a substitute for the DataFrame, which has a schema and
collects the filters. A condition that needs data (a mean, for example) therefore cannot be resolved by mistake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from great_expectations.exceptions import ExpectationNotFoundError, MetricProviderError
from great_expectations.execution_engine import SparkDFExecutionEngine
from great_expectations.execution_engine.sparkdf_batch_data import SparkDFBatchData
from great_expectations.expectations.expectation_configuration import ExpectationConfiguration
from great_expectations.expectations.registry import (
    get_metric_kwargs,
    get_metric_provider,
    list_registered_expectation_implementations,
)
from great_expectations.validator.metric_configuration import MetricConfiguration
from great_expectations.validator.validation_graph import ValidationGraph

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

__all__ = ["RowCondition", "has_row_condition", "load_expectation", "row_condition"]

_OF_THE_SCHEMA: Final = frozenset({"table.columns", "table.column_types"})
_BY_VALUE: Final = frozenset({"column_values.unique", "compound_columns.unique"})
"""Metrics with a window for each value, null included. Without a row condition the value also decides the domain."""
_ROW_COUNT: Final = "table.row_count"
"""A dependency of every map metric, for its summary. No condition of Great Expectations reads it."""
_OF_THE_ROW: Final = (".condition", ".map")
"""Suffixes of metrics that are a Spark column."""


@dataclass(frozen=True)
class RowCondition:
    """The condition of one expectation. Both columns name the table's columns, and belong to no DataFrame."""

    domain: Column | None
    """True for the rows that the expectation covers (row condition, ignored rows); None: all rows."""
    unexpected: Column
    """True for a row of the domain that fails. A null passes."""
    independent: bool
    """Whether a window of the condition never mixes rows of the domain with others."""


def load_expectation(entry: Mapping[str, Any]) -> Any:
    """Return the expectation of an entry of a saved suite.

    Raises ValueError in one line: for an unknown type, or for a rejection by Great Expectations.
    """
    try:
        return ExpectationConfiguration(**entry).to_domain_obj()
    except ExpectationNotFoundError as e:
        near = get_close_matches(str(entry["type"]), list_registered_expectation_implementations(), 1)
        hint = f"did you mean {near[0]}?" if near else "import the module that defines it"
        raise ValueError(f"Great Expectations does not know {entry['type']!r}; {hint}") from e
    except Exception as e:
        # It validates with pydantic, which reports each problem of a field for each type that the field may have.
        problems: Any = getattr(e, "errors", None)
        if problems is None:
            raise ValueError(str(e).removeprefix("ExpectationConfiguration.__init__() ")) from e
        by_field = {".".join(map(str, p["loc"])): p["msg"] for p in reversed(problems())}
        text = "; ".join(msg if f == "__root__" else f"{f}: {msg}" for f, msg in by_field.items())
        raise ValueError(text) from e


def has_row_condition(expectation: Any) -> bool:
    """Return whether Great Expectations has a Spark condition on the row, or with a window."""
    wanted = _condition_metric(expectation, _engine(None))
    return wanted is not None and all(
        name in _OF_THE_SCHEMA or name.endswith(_OF_THE_ROW) for name in _names(wanted) - {_ROW_COUNT}
    )


def row_condition(expectation: Any, schema: StructType) -> RowCondition:
    """Return the condition of an expectation that has one, for rows of this schema.

    Raises any exception of Great Expectations or of a custom metric.
    """
    engine = _engine(_Rows(schema))
    wanted = _condition_metric(expectation, engine)
    if wanted is None:
        raise ValueError("no condition on a row")
    unexpected, compute, accessor = _resolve(wanted, engine, {})
    # The parts together are the domain. The metric of pairs in a set does not name the row condition as a part.
    kwargs = expectation.configuration.kwargs
    given = {key: kwargs[key] for key in ("row_condition", "condition_parser") if key in kwargs}
    conditions = engine.get_domain_records(domain_kwargs={**given, **compute, **accessor}).conditions
    domain = reduce(lambda a, b: a & b, conditions) if conditions else None
    independent = expectation.map_metric in _BY_VALUE and not expectation.row_condition
    return RowCondition(domain, unexpected, independent)


class _Rows:
    """Replaces a DataFrame: it has a schema, and collects filters instead of rows."""

    def __init__(self, schema: StructType, conditions: tuple[Column, ...] = ()) -> None:
        self.schema = schema
        self.columns = list(schema.names)
        self.conditions = conditions

    def filter(self, condition: Column | str) -> _Rows:
        from pyspark.sql import functions as F

        found = F.expr(condition) if isinstance(condition, str) else condition
        return _Rows(self.schema, (*self.conditions, found))

    def __getitem__(self, names: str | Sequence[str]) -> Any:
        from pyspark.sql import functions as F
        from pyspark.sql.types import StructType

        if isinstance(names, str):
            return F.col(names)
        return _Rows(StructType([self.schema[name] for name in names]), self.conditions)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a condition on a row cannot use the table's data (DataFrame.{name})")


def _engine(rows: _Rows | None) -> Any:
    # The session is not used: without one the engine would look for a session, or start Spark.
    nothing: Any = object()
    engine = SparkDFExecutionEngine(persist=False, spark=nothing)
    if rows is not None:
        engine.load_batch_data("rows", SparkDFBatchData(engine, rows))
    return engine


def _condition_metric(expectation: Any, engine: Any) -> Any:
    """Return the metric of the condition with all its dependencies; None without one for Spark."""
    name = f"{getattr(expectation, 'map_metric', None)}.condition"
    try:
        get_metric_provider(name, engine)
    except MetricProviderError:
        return None
    kwargs = get_metric_kwargs(name, configuration=expectation.configuration)
    wanted = MetricConfiguration(name, kwargs["metric_domain_kwargs"], kwargs["metric_value_kwargs"])
    ValidationGraph(execution_engine=engine).build_metric_dependency_graph(metric_configuration=wanted)
    return wanted


def _names(metric: Any) -> set[str]:
    if metric.metric_name == _ROW_COUNT:
        return {_ROW_COUNT}
    return {metric.metric_name}.union(*(_names(needed) for needed in metric.metric_dependencies.values()))


def _resolve(metric: Any, engine: Any, resolved: dict[Any, Any]) -> Any:
    # The graph's own `resolve` would count the rows.
    if metric.id not in resolved and metric.metric_name == _ROW_COUNT:
        resolved[metric.id] = None
    if metric.id not in resolved:
        for needed in metric.metric_dependencies.values():
            _resolve(needed, engine, resolved)
        resolved.update(engine.resolve_metrics(metrics_to_resolve=[metric], metrics=resolved))
    return resolved[metric.id]
