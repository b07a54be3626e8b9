"""Bronze to silver to commands on real Delta, without Pulsar: for tests of what is done to the tables beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streaming.checkpoints import Checkpoint
from streaming.decoders.settings import load_decoders
from streaming.predicates import load_suite, parse_suite

from bridge.settings import StreamingSettings
from bridge.settings.loading import conf_path
from streaming import alerts, bronze, silver
from streaming.rules import load_rules
from streaming.tables import Tables
from tests.support import bronze_rows
from tests.support.bronze_rows import Message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["Lakehouse"]


class Lakehouse:
    """The tables of one test, and the queries over them; commands are kept in ``emitted``."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.tables = Tables.of(StreamingSettings(root=str(root)))
        self.emitted: list[str] = []
        """The reading of each command, in order."""
        bronze.create_tables(spark, self.tables)
        silver.create_tables(spark, self.tables)

    def arrive(self, *messages: Message) -> None:
        """Append to bronze."""
        bronze_rows.append(self.spark, self.tables, messages)

    def recipe(self, least: float | None = None) -> dict[str, Any]:
        """Return the shipped recipe; ``least``: another least value of glucose."""
        body: dict[str, Any] = {**load_suite(conf_path("expectations/silver.json")).body}
        if least is not None:
            body["expectations"] = [_edited(entry, least) for entry in body["expectations"]]
        return silver.recipe_of(load_decoders(conf_path("rules.yaml")), parse_suite(body, "edited"), 600.0)

    def silver(self, recipe: Mapping[str, Any] | None = None, **trigger: Any) -> StreamingQuery:
        """Start silver, by default over what is there."""
        checkpoint = Checkpoint(self.spark, self.tables.checkpoint("silver"))
        batches = silver.SilverBatches(self.tables, checkpoint, recipe or self.recipe())
        query = silver.query(self.spark, self.tables, batches)
        return query.trigger(**(trigger or {"availableNow": True})).start()

    def alerts(self, **trigger: Any) -> StreamingQuery:
        """Start alerts, by default over what is there."""
        found = alerts.commands(
            silver.judged_by_the_query(self.spark, self.tables), load_rules(conf_path("rules.yaml"))
        )

        def keep(rows: DataFrame, batch: int) -> None:
            self.emitted += [row["cause"].partition("/")[2] for row in rows.select("cause").collect()]

        query = found.writeStream.queryName("alerts").foreachBatch(keep)
        query = query.option("checkpointLocation", self.tables.checkpoint("alerts"))
        return query.trigger(**(trigger or {"availableNow": True})).start()

    def catch_up(self, recipe: Mapping[str, Any] | None = None) -> None:
        """Run silver and alerts over what is new."""
        self.silver(recipe).awaitTermination()
        self.alerts().awaitTermination()

    @property
    def commanded(self) -> list[str]:
        """The readings of which commands came, in order; several of one reading count once."""
        return [reading for n, reading in enumerate(self.emitted) if self.emitted[n - 1 : n] != [reading]]

    def ids(self, name: str) -> list[str]:
        """Return the reading ids in a table, sorted."""
        frame = self.tables.named()[name].read(self.spark)
        return sorted(str(row[0]) for row in frame.select("reading_id").collect())


def _edited(entry: dict[str, Any], least: float) -> dict[str, Any]:
    if (entry.get("meta") or {}).get("rule") != "glucose_range":
        return entry
    return {**entry, "kwargs": {**entry["kwargs"], "min_value": least}}
