"""The source as Sparks before 4.2 drive it, on any Spark: its stream reader takes no start and no limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sources.datasource import PulsebridgeDataSource
from sources.stream_reader import PulsebridgeStreamReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from sources.options import SourceOptions

__all__ = ["FORMAT", "OlderSource"]

FORMAT = "pulsebridge_of_older_sparks"


class OlderSource(PulsebridgeDataSource):
    """The source with the reader that 4.0 and 4.1 get."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: StructType) -> PulsebridgeStreamReader:
        options: SourceOptions = super().streamReader(schema)._options  # type: ignore[attr-defined]
        return PulsebridgeStreamReader(options)
