"""Tables of one test, and batches of silver over what bronze holds, under recipes that change between them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streaming.checkpoints import Checkpoint
from streaming.decoders.settings import parse_decoders
from streaming.predicates import Suite, parse_suite

from bridge.settings import StreamingSettings
from streaming import bronze, silver
from streaming.evolution import Found
from streaming.tables import Tables
from tests.support import bronze_rows
from tests.support.bronze_rows import Message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["PRESENT", "TIME", "SilverWorld", "message"]

TIME = "2026-01-02T11:00:00Z"
PRESENT = parse_suite(
    {
        "name": "present",
        "expectations": [
            {
                "type": "expect_column_values_to_not_be_null",
                "kwargs": {"column": name},
                "meta": {"rule": f"{name}_present"},
            }
            for name in ("reading_id", "event_time")
        ],
    },
    "test",
)
"""A suite that lets rows without a value pass."""


def message(entry: int, topic: str, body: object) -> Message:
    """Return a message; what is no bytes becomes JSON."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Message(entry, topic, payload, fields={"mqtt_topic": topic})


class SilverWorld:
    """The tables of one test below a folder."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.tables = Tables.of(StreamingSettings(root=str(root / "lakehouse")))
        self.found: list[tuple[Sequence[Found], Sequence[str]]] = []
        bronze.create_tables(spark, self.tables)

    def arrive(self, *messages: Message) -> None:
        """Append the messages to bronze."""
        bronze_rows.append(self.spark, self.tables, messages)

    def run(
        self,
        decoders: Iterable[dict[str, Any]],
        mode: str = "rescue",
        *,
        suite: Suite = PRESENT,
        after: Callable[[str], None] = lambda step: None,
        columns: int = 10,
    ) -> None:
        """Run silver over what is there, as a driver that was just started."""
        recipe = silver.recipe_of(parse_decoders(list(decoders), "test"), suite, 600.0, (), mode, columns)
        checkpoint = Checkpoint(self.spark, self.tables.checkpoint("silver"))
        batches = silver.SilverBatches(
            self.tables, checkpoint, recipe, after, heard=lambda *of: self.found.append(of)
        )
        query = silver.query(self.spark, self.tables, batches).trigger(availableNow=True).start()
        query.awaitTermination()

    def silver(self, *columns: str) -> list[tuple[Any, ...]]:
        """Return columns of silver, in Pulsar's order."""
        rows = self.tables.silver.read(self.spark).orderBy("entry_id", "element").select(*columns).collect()
        return [tuple(row) for row in rows]
