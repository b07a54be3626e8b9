"""Checkpoints of a Great Expectations project: they validate tables and run the user's actions.

The project has a Checkpoint and a ValidationDefinition for each table with a suite; missing ones are added. Data Docs,
notifications and a webhook are actions in the Checkpoint's file. The results are also rows of a table.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bridge.errors import ConfigError
from streaming.suites import Rule, Suite, Suites, great_expectations, line_of, project_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["RESULT_COLUMNS", "Verdict", "result_rows", "run_checkpoint"]

RESULT_COLUMNS: Final = (
    ("run_at", "timestamp", "time of the verdict"),
    ("table", "string", "the table that was validated"),
    ("suite", "string", "name of the suite"),
    ("rule", "string", "name of the rule"),
    ("expectation", "string", "type of the expectation"),
    ("columns", "array<string>", "columns that it reads"),
    ("severity", "string", "critical, warning or info"),
    ("splits_rows", "boolean", "whether it also marks rows of a batch"),
    ("success", "boolean", "the verdict"),
    ("evaluated", "bigint", "rows validated, null for a rule on the table"),
    ("unexpected", "bigint", "rows that failed, null for a rule on the table"),
    ("observed", "string", "the observed value, or the reason for no verdict"),
    ("rows_since", "timestamp", "the rows were processed after this"),
    ("rows_until", "timestamp", "and not after this"),
)
"""Columns of the Delta table of results: name, Spark SQL type, comment."""

_SOURCE: Final = "pulsebridge"
_BATCH: Final = "rows"
_lock = threading.Lock()
"""Great Expectations has global state, so a process makes its verdicts in sequence."""


@dataclass(frozen=True)
class Verdict:
    """The result of one rule on a table. ``evaluated`` and ``unexpected`` are None for a rule on the whole table."""

    rule: Rule
    success: bool
    evaluated: int | None
    unexpected: int | None
    observed: str
    """The observed value of a rule on the table, or the error that prevented a verdict."""

    def as_dict(self) -> dict[str, Any]:
        """Return it as a dictionary for JSON and for a row of a table."""
        return {
            "rule": self.rule.name,
            "expectation": self.rule.expectation,
            "splits_rows": self.rule.splits,
            "success": self.success,
            "evaluated": self.evaluated,
            "unexpected": self.unexpected,
            "observed": self.observed,
        }


def run_checkpoint(folder: Path, table: str, suite: Suite, rows: DataFrame) -> list[Verdict]:
    """Run the table's Checkpoint and its actions on rows. Return the verdicts in suite order.

    A missing Checkpoint is added, with a ValidationDefinition and the action that updates the Data
    Docs; it stores no values of rows. Edit it with Great Expectations to add actions. A suite without ids, which was
    written by hand, is saved with ids. It takes seconds and runs jobs, so persist the rows before the call.
    Raises ConfigError if Great Expectations cannot use the project, and an action's exception.
    """
    with _lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gx = great_expectations(suite)
        try:
            context = gx.get_context(mode="file", context_root_dir=str(project_folder(folder)))
            stored = context.suites.get(suite.name)
            if stored.id is None or any(e.id is None for e in stored.expectations):
                stored.save()  # written by hand: Great Expectations adds the ids that results need
            checkpoint = _checkpoint(gx, context, table, stored)
            context.variables.progress_bars = {"globally": False}  # set after the additions, so never saved
        except gx.exceptions.GreatExpectationsError as e:
            raise ConfigError(
                f"the Great Expectations project {folder} cannot validate {table}: {line_of(e)}",
                remedy="correct the project's files",
            ) from e
        results = checkpoint.run(batch_parameters={"dataframe": rows}).run_results.values()
    entries = {e.expectation_config.id: e for result in results for e in result.results}
    current = Suites(folder).suite(suite.name)  # Great Expectations validated by the current file
    return [_verdict(rule, entries[rule.id]) for rule in current.rules if rule.id in entries]


def result_rows(
    verdicts: Sequence[Verdict], suite: Suite, table: str, since: datetime | None, until: datetime | None
) -> list[tuple[Any, ...]]:
    """Return the verdicts as rows of ``RESULT_COLUMNS``. The rows were processed after ``since``, until ``until``."""
    now = datetime.now(timezone.utc)
    rows: list[tuple[Any, ...]] = []
    for v in verdicts:
        rule = (v.rule.name, v.rule.expectation, list(v.rule.columns), v.rule.severity, v.rule.splits)
        found = (v.success, v.evaluated, v.unexpected, v.observed)
        rows.append((now, table, suite.name, *rule, *found, since, until))
    return rows


def _checkpoint(gx: Any, context: Any, table: str, suite: Any) -> Any:
    """Return the Checkpoint of the table; missing parts are added to the project."""

    def got(find: Callable[[str], Any], name: str, add: Callable[[], Any]) -> Any:
        try:
            return find(name)
        except (LookupError, gx.exceptions.DataContextError):
            return add()

    def definition() -> Any:
        sources = context.data_sources
        source = got(sources.get, _SOURCE, lambda: sources.add_spark(_SOURCE, persist=False))
        asset = got(source.get_asset, table, lambda: source.add_dataframe_asset(table))
        whole = asset.add_batch_definition_whole_dataframe
        batch = got(asset.get_batch_definition, _BATCH, lambda: whole(_BATCH))
        return context.validation_definitions.add(gx.ValidationDefinition(name=table, data=batch, suite=suite))

    def checkpoint() -> Any:
        return context.checkpoints.add(
            gx.Checkpoint(
                name=table,
                validation_definitions=[got(context.validation_definitions.get, table, definition)],
                actions=[gx.checkpoint.UpdateDataDocsAction(name="data_docs")],
                result_format={"result_format": "BASIC", "partial_unexpected_count": 0},
            )
        )

    return got(context.checkpoints.get, table, checkpoint)


def _verdict(rule: Rule, entry: Any) -> Verdict:
    found, failure = entry.result or {}, entry.exception_info or {}
    # One dictionary, or one for each metric that failed.
    errors = [failure, *(v for v in failure.values() if isinstance(v, Mapping))]
    error = next((e["exception_message"] for e in errors if e.get("exception_message")), None)
    observed = found.get("observed_value")
    return Verdict(
        rule,
        bool(entry.success),
        found.get("element_count"),
        found.get("unexpected_count"),
        error or ("" if observed is None else str(observed)),
    )
