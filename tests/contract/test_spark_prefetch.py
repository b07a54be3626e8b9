"""What the hot tail takes from Spark's private parts is there, in the Spark that is installed."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.serializers import read_int, write_with_length
from pyspark.sql.types import BinaryType, StructField, StructType

from sources.spark_internals import prefetching
from sources.stream_reader import PulsebridgeStreamReader

runner = pytest.importorskip("pyspark.sql.streaming.python_streaming_source_runner")


class Reader(PulsebridgeStreamReader):
    """Its rows are at hand, or not."""

    def __init__(self, rows: list[bytes] | None) -> None:
        super().__init__(ValueError("makes no connection"))  # type: ignore[arg-type]
        self.rows = rows

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Any:
        if self.rows is not None:
            batch = pa.RecordBatch.from_arrays([pa.array(self.rows, pa.binary())], names=["value"])
            self._at_hand = [[batch]] if self.rows else []
        return [None]


def _asked(reader: Reader) -> int:
    """Have Spark's runner ask for partitions; return what it says of rows."""
    request, reply = io.BytesIO(), io.BytesIO()
    for offset in ({"n": 0}, {"n": 1}):
        write_with_length(json.dumps(offset).encode(), request)
    request.seek(0)
    schema = StructType([StructField("value", BinaryType())])
    runner.partitions_func(reader, None, schema, 10_000, request, reply)
    reply.seek(0)
    assert read_int(reply) == 1
    reply.read(read_int(reply))
    return read_int(reply)


def test_spark_takes_rows_that_are_at_hand_and_none_else() -> None:
    assert prefetching() is not None
    reader = Reader([b"1", b"2"])
    assert _asked(reader) == runner.NON_EMPTY_PYARROW_RECORD_BATCHES
    assert not isinstance(reader, prefetching() or ()), "once they are taken it is a reader like any other"
    assert _asked(Reader([])) == runner.EMPTY_PYARROW_RECORD_BATCHES
    assert _asked(Reader(None)) == runner.PREFETCHED_RECORDS_NOT_FOUND
