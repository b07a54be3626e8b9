"""The one module that imports Great Expectations: verdicts of a suite on a DataFrame.

It decides nothing about rows: those are split by the predicates that ``streaming.predicates`` compiles from the very
same suite. ``ValidationDefinition.run`` would cache a frame in each run and keep every result for ever, so a batch
is validated directly, and nothing is persisted.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import shutil
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from bridge.errors import ConfigError, MissingExtraError
from streaming.data_docs import PAGES, offline

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

    from streaming.predicates import Suite

__all__ = ["Validation", "Verdict", "check_suite", "validate", "verdicts"]

# Read when the package is imported: nothing is sent to anybody.
os.environ["GX_ANALYTICS_ENABLED"] = "false"

_lock = threading.Lock()
_context: Any = None


@dataclass(frozen=True)
class Verdict:
    """What one expectation says of a table. ``evaluated`` and ``unexpected`` are None for a rule on the table."""

    rule: str
    expectation: str
    columns: tuple[str, ...]
    splits_rows: bool
    success: bool
    evaluated: int | None
    unexpected: int | None
    observed: str


@dataclass(frozen=True)
class Validation:
    """What a suite says of a table: the verdicts in its order, and the same for people, as Data Docs."""

    verdicts: tuple[Verdict, ...]
    _result: Any
    _suite: Any

    def write_docs(self, out: Path, title: str) -> None:
        """Write the pages of this validation and of its suite into a folder (``data_docs.PAGES``); what is there of
        them is replaced.
        """
        from great_expectations.core.run_identifier import RunIdentifier
        from great_expectations.render import renderer, view

        show: Any = view
        made: Any = renderer
        with _lock, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._result.meta["run_id"] = RunIdentifier(run_name=title, run_time=datetime.now(timezone.utc))
            rendered = (
                made.ValidationResultsPageRenderer(run_info_at_end=True).render(self._result),
                made.ExpectationSuitePageRenderer().render(self._suite),
            )
            pages = [show.DefaultJinjaPageView().render(one, show_how_to_buttons=False) for one in rendered]
        out.mkdir(parents=True, exist_ok=True)
        for name, page in zip(PAGES, pages, strict=True):
            (out / name).write_text(offline(page, title), encoding="utf-8")


def verdicts(rows: DataFrame, suite: Suite) -> list[Verdict]:
    """Return the verdicts of ``validate``."""
    return list(validate(rows, suite).verdicts)


def validate(rows: DataFrame, suite: Suite) -> Validation:
    """Validate rows by every expectation of the suite; the caller caches the rows, if it likes.

    It takes seconds, whatever the number of rows; no values of rows are kept. Raises ConfigError when Great
    Expectations refuses the suite, MissingExtraError when it is not installed.
    """
    with _lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = _suite(suite)
        result = (
            _asset()
            .get_batch({"dataframe": rows})
            .validate(made, result_format={"result_format": "BASIC", "partial_unexpected_count": 0})
        )
    # Great Expectations sorts its results; the metadata says which rule each belongs to.
    by_rule = {_position(entry): entry for entry in result.results}
    return Validation(tuple(_verdict(suite, n, by_rule[n]) for n in range(len(suite.rules))), result, made)


def check_suite(suite: Suite) -> None:
    """Let Great Expectations read the suite. Raises ConfigError with its own words when it refuses it."""
    with _lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _gx()
        _suite(suite)


def _verdict(suite: Suite, n: int, entry: Any) -> Verdict:
    rule, found = suite.rules[n], entry.result
    failure = entry.exception_info or {}
    text = failure.get("exception_message") if isinstance(failure, Mapping) else None
    if text is None and isinstance(failure, Mapping):
        messages = [v.get("exception_message") for v in failure.values() if isinstance(v, Mapping)]
        text = next((m for m in messages if m), None)
    observed = found.get("observed_value")
    return Verdict(
        rule=rule.name,
        expectation=rule.expectation,
        columns=rule.columns,
        splits_rows=rule.predicate is not None,
        success=bool(entry.success),
        evaluated=found.get("element_count"),
        unexpected=found.get("unexpected_count"),
        observed=text or ("" if observed is None else str(observed)),
    )


def _position(entry: Any) -> int:
    return int(entry.expectation_config.meta["position"])


def _suite(suite: Suite) -> Any:
    gx = _gx()
    entries = json.loads(json.dumps(suite.body["expectations"]))
    for n, entry in enumerate(entries):
        entry["meta"] = {**(entry.get("meta") or {}), "position": n}
        entry.pop("id", None)
    try:
        made = gx.ExpectationSuite(name=suite.name, expectations=entries)
    except Exception as e:  # whatever it raises about a suite, the suite is what must change
        raise ConfigError(
            f"suite {suite.name!r}: Great Expectations refuses it: {e}", remedy="correct the suite's file"
        ) from e
    # It leaves out, with a word in its log, what it does not understand.
    taken = {int(e.meta["position"]) for e in made.expectations}
    refused = [f"expectations[{n}] ({r.expectation})" for n, r in enumerate(suite.rules) if n not in taken]
    if refused:
        raise ConfigError(
            f"suite {suite.name!r}: Great Expectations refuses {', '.join(refused)}",
            remedy="correct the type and its kwargs",
        )
    return made


def _asset() -> Any:
    global _context
    gx = _gx()
    if _context is None:
        _context = gx.get_context(mode="ephemeral")
        _context.variables.progress_bars = _no_bars()
        for site in (_context.variables.data_docs_sites or {}).values():
            # An ephemeral context makes a folder for documents, and leaves it behind.
            folder = site.get("store_backend", {}).get("base_directory")
            if folder:
                atexit.register(shutil.rmtree, folder, ignore_errors=True)
        source = _context.data_sources.add_spark("tables", persist=False)
        source.add_dataframe_asset("rows").add_batch_definition_whole_dataframe("all")
    return _context.data_sources.get("tables").get_asset("rows").get_batch_definition("all")


def _no_bars() -> Any:
    from great_expectations.data_context.types.base import ProgressBarsConfig

    return ProgressBarsConfig(globally=False, metric_calculations=False)


def _gx() -> Any:
    # Its loggers set levels of their own; what matters of what they say is raised or is in the verdict.
    log = logging.getLogger("great_expectations")
    log.propagate = False
    if not log.handlers:
        log.addHandler(logging.NullHandler())
    try:
        import great_expectations
    except ModuleNotFoundError as e:
        raise MissingExtraError(
            "verdicts need great_expectations",
            remedy="pip install 'pulsebridge[quality]', or streaming.quality_interval_s=0",
        ) from e
    return great_expectations
