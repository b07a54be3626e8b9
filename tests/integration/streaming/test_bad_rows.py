"""Ten kinds of bad rows among good ones: each is in exactly one of table and quarantine, with the right rules.

``TEST_BAD_ROWS`` is the number of messages.
"""

from __future__ import annotations

import json
import os
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Final

import pytest

from bridge.contract import P_INGEST, P_TOPIC, encode_ingest
from bridge.pulsar.wire.batches import head_of
from bridge.settings import Settings
from streaming.job import Job
from streaming.loading import pipeline_of
from tests.bench.source_peers import Message, OurSide

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bridge.settings import PulsarSettings

pytestmark = [pytest.mark.spark, pytest.mark.stack]

ROWS: Final = int(os.environ.get("TEST_BAD_ROWS", "4000"))
ENTRY: Final = 1000
BEGIN_MS: Final = 1_767_225_600_000  # 2026-01-01
DEVICES: Final = 200


def _ts(seconds: int) -> str:
    minutes, second = divmod(seconds, 60)
    return f"2025-12-{1 + minutes // 1440 % 28:02}T{minutes // 60 % 24:02}:{minutes % 60:02}:{second:02}Z"


def _good(n: int) -> dict[str, Any]:
    return {
        "id": f"m-{n}", "ts": _ts(n), "temperature": 20.5 + n % 7, "low": 1, "high": 2 + n % 3, "unit": "C", "firmware": "v1.2",
    }  # fmt: skip


def _with(**changes: Any) -> Callable[[int], bytes]:
    return lambda n: json.dumps(_good(n) | changes).encode()


KINDS: Final[tuple[tuple[str, Callable[[int], bytes], tuple[str, ...]], ...]] = (
    ("not JSON", lambda n: json.dumps(_good(n)).encode()[:-1], ("undecodable",)),
    ("not UTF-8", lambda n: b"\xff" + json.dumps(_good(n)).encode(), ("undecodable",)),
    ("no time", _with(ts="yesterday"), ("undecodable",)),
    ("far ahead", _with(ts="2031-01-01T00:00:00Z"), ("clock_skew",)),
    ("out of range", _with(temperature=999), ("temperature_range",)),
    ("no number", _with(temperature="warm"), ("temperature_present",)),
    ("unknown unit", _with(unit="K"), ("unit_known",)),
    ("odd firmware", _with(firmware="1.2"), ("firmware_form",)),
    ("low above high", _with(low=9), ("low_below_high",)),
    ("two rules", _with(unit="F", temperature=-300), ("temperature_range", "unit_known")),
)
"""Names, payloads, and the rules that such a row fails."""
EACH: Final = 40
"""Of so many messages one each is of a kind; the others are good."""
SUITE: Final = {
    "name": "plant",
    "expectations": [
        {"type": f"expect_{kind}", "kwargs": more, "meta": {"rule": rule}, "severity": "critical"}
        for rule, kind, more in (
            ("temperature_present", "column_values_to_not_be_null", {"column": "temperature"}),
            ("temperature_range", "column_values_to_be_between", {"column": "temperature", "min_value": -50, "max_value": 60}),
            ("unit_known", "column_values_to_be_in_set", {"column": "unit", "value_set": ["C"]}),
            ("firmware_form", "column_values_to_match_regex", {"column": "firmware", "regex": "^v"}),
            ("low_below_high", "column_pair_values_a_to_be_greater_than_b", {"column_A": "high", "column_B": "low"}),
        )
    ],
    "meta": {},
}  # fmt: skip


def kind_of(n: int) -> int | None:
    """Return which kind of bad row a message is, None for a good one."""
    return n % EACH if n % EACH < len(KINDS) else None


def messages() -> Iterator[list[Message]]:
    """Yield what a topic is filled with, an entry after the other."""
    ingest = encode_ingest(link="test", protocol="5", rule="plant")
    heads = [head_of(f"d{n}", {P_TOPIC: f"plant/d{n}/climate", P_INGEST: ingest}) for n in range(DEVICES)]
    for first in range(0, ROWS, ENTRY):
        batch = []
        for n in range(first, min(first + ENTRY, ROWS)):
            kind = kind_of(n)
            body = json.dumps(_good(n)).encode() if kind is None else KINDS[kind][1](n)
            batch.append(Message(body, heads[n % DEVICES], BEGIN_MS + n))
        yield batch


@pytest.mark.timeout(300 + ROWS // 1000)
def test_each_of_ten_kinds_of_bad_rows_is_in_exactly_one_table_by_the_right_rules(
    spark: SparkSession, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    topic = OurSide(namespaces).store(2, messages()).rsplit("/", 1)[1]
    gx = tmp_path / "gx"
    (gx / "expectations").mkdir(parents=True)
    (gx / "great_expectations.yml").touch()
    (gx / "expectations" / "plant.json").write_text(json.dumps(SUITE), "utf-8")
    table = {
        "name": "climate", "suite": "plant", "cluster_by": ["device"],
        "decoding": {
            "filter": "plant/+device/climate", "id": "$.id", "time": "$.ts",
            "fields": "temperature double, low int, high int, unit string, firmware string",
        },
    }  # fmt: skip
    streaming = {
        "root": str(tmp_path / "lakehouse"), "topics": [topic], "built_in": [], "tables": [table],
        "suites": str(tmp_path), "quality": {"interval": "0s"}, "subscription": f"bad-{uuid.uuid4().hex[:6]}",
    }  # fmt: skip
    settings = Settings.model_validate({"streaming": streaming}).model_copy(update={"pulsar": namespaces})
    counts: Counter[bool] = Counter()

    def counted(name: str, good: int, bad: int) -> None:
        counts.update({True: good, False: bad})

    job = Job(spark, settings, pipeline_of(settings), counted=counted)
    job.prepare()
    job.run(Event(), available_now=True)

    def read(name: str) -> Any:
        return spark.read.format("delta").load(f"{tmp_path}/lakehouse/{name}")

    # The number of a message is in its payload, however damaged.
    number = "int(regexp_extract(CAST(payload AS STRING), r'\"m-(\\d+)\"', 1)) AS n"
    good = read("climate").selectExpr("int(substring(_id, 3)) AS n", "CAST(NULL AS ARRAY<STRING>) AS rules")
    bad = read("quarantine").selectExpr(number, "array_sort(failed_rules) AS rules")
    rows = good.unionByName(bad)
    assert rows.count() == rows.select("n").distinct().count() == ROWS
    kind = f"CASE WHEN n % {EACH} < {len(KINDS)} THEN n % {EACH} END AS kind"
    found = {
        (row["kind"], None if row["rules"] is None else tuple(row["rules"])): row["count"]
        for row in rows.selectExpr(kind, "rules").groupBy("kind", "rules").count().collect()
    }
    expected = Counter((kind_of(n), None if kind_of(n) is None else KINDS[n % EACH][2]) for n in range(ROWS))
    assert found == expected
    assert (counts[True], counts[False]) == (expected[None, None], ROWS - expected[None, None])
