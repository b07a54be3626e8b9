"""Builds the pipeline of the settings: built-in, declared and the user's own tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from streaming import built_in
from streaming import pipelines as dp
from streaming.modules import import_module

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from bridge.settings import Settings, TopicRule
    from bridge.settings.tables import TableDeclaration

__all__ = ["pipeline_of"]


def pipeline_of(settings: Settings) -> dp.Pipeline:
    """Return the pipeline of the settings. Raises ConfigError, in one line, for an invalid module or declaration."""
    from streaming.decoding import declared_tables

    with dp.declaring(dp.Pipeline()) as pipeline:
        # Alerts use the columns of tables, so they come last.
        chosen = settings.streaming.built_in
        built_in.declare(settings, [name for name in chosen if name != "alerts"])
        for table in declared_tables(settings):
            _declare(table, settings.ingest.all_routes)
        for name in settings.streaming.modules:
            import_module(name)
        if "alerts" in chosen:
            built_in.declare(settings, ["alerts"])
    _attach_suites(pipeline, settings)
    pipeline.check()
    return pipeline


def _attach_suites(pipeline: dp.Pipeline, settings: Settings) -> None:
    """Let a suite validate the table that has its name, unless the table names another one."""
    from streaming.suites import Suites

    for name in Suites(settings.streaming.suites).names():
        declared = pipeline.tables.get(name)
        if declared is not None and declared.suite is None:
            pipeline.tables[name] = replace(declared, suite=name)


def _declare(table: TableDeclaration, rules: Sequence[TopicRule]) -> None:
    def rows() -> DataFrame:
        return dp.decoded(table.decoding)

    # A row without its own id is identified by its unique position in Pulsar, so no key is looked up.
    has_ids = [one for one in table.decoding if one.id is not None] or any(r.reading_id for r in rules)
    keys = table.keys if table.keys != type(table).model_fields["keys"].default or has_ids else ()

    dp.table(
        rows,
        name=table.name,
        comment=table.comment,
        cluster_by=table.cluster_by,
        table_properties=table.table_properties,
        keys=keys,
        suite=table.suite,
        schema_evolution=table.schema_evolution,
    )
