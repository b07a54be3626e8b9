"""Times of readings on real Spark, against the same arithmetic in Python's decimals."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from decimal import ROUND_FLOOR, Context, Decimal
from typing import TYPE_CHECKING, Any

import cbor2
import pytest

from streaming import silver
from streaming.decoders.settings import parse_decoders
from streaming.decoders.times import AUTO_BOUNDS
from streaming.predicates import parse_suite
from tests.support import bronze_rows
from tests.support.bronze_rows import Message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

UNITS = {"s": Decimal(10**6), "ms": Decimal(10**3), "us": Decimal(1), "ns": Decimal("0.001")}
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
SUITE = parse_suite({"name": "none", "expectations": []}, "test")
EXACT = Context(prec=80)


def said(number: str, unit: str) -> datetime | None:
    """Return the time that a number says, rounded down to µs; None outside of what Python knows."""
    value = Decimal(number)
    if unit == "auto":
        unit = next((name for name, bound in AUTO_BOUNDS if abs(value) < bound), "ns")
    value = EXACT.quantize(value, Decimal("1e-9"))
    micros = EXACT.multiply(value, UNITS[unit]).to_integral_value(ROUND_FLOOR)
    try:
        return EPOCH + timedelta(microseconds=int(micros))
    except OverflowError:
        return None


def numbers() -> Iterator[str]:
    """Numbers of all sizes, whole, with a point, with an exponent; and the bounds themselves."""
    draw = random.Random(7)
    for _ in range(800):
        digits = str(draw.randrange(10 ** draw.randrange(1, 20)))
        yield draw.choice(("", "-")) + digits
        yield f"{digits}.{draw.randrange(10**9):09d}"
    for _, bound in AUTO_BOUNDS:
        yield from (str(bound - 1), str(bound), str(-bound), f"{bound - 1}.999999999")
    for seconds in (253_402_300_799, 253_402_300_800, -62_135_596_800, -62_135_596_801):
        yield from (f"{seconds}", f"{seconds}e3", f"{seconds}E+6")


def judged(spark: SparkSession, decoders: list[dict[str, Any]], messages: list[Message]) -> list[Any]:
    from pyspark.sql import functions as F

    recipe = silver.recipe_of(parse_decoders(decoders, "test"), SUITE, 600.0)
    rows = silver.judged(bronze_rows.frame(spark, messages), recipe)
    reason = F.when(F.size("failed_rules") > 0, silver.reason_of(SUITE))
    rows = rows.withColumns({"micros": F.unix_micros("event_time"), "reason": reason})
    return rows.select("entry_id", "micros", "failed_rules", "reason").orderBy("entry_id").collect()


@pytest.mark.long
def test_numbers_of_every_unit_are_read_exactly_and_others_held_with_the_reason(spark: SparkSession) -> None:
    """JSON numbers, text and CBOR; beyond the years that Python knows, and what is no number, is no time."""
    common = {"metric": "t", "value": "$.v", "id": "$.i", "time": "$.t"}
    decoders = [{"filter": f"x/{unit}/#", "time_unit": unit, **common} for unit in (*UNITS, "auto")]
    forms = [
        {"filter": "c/csv", "format": "csv", "fields": ["i", "t", "v"], "time_unit": "ms", **common},
        {"filter": "c/cbor", "format": "cbor", "time_unit": "auto", **common},
        {"filter": "c/iso", **common},
    ]
    messages: list[Message] = []
    expected: dict[int, datetime | None] = {}

    def arrive(topic: str, payload: bytes, time: datetime | None) -> None:
        entry = len(messages)
        messages.append(Message(entry, "d", payload, fields={"mqtt_topic": topic}))
        expected[entry] = time

    for n, number in enumerate(numbers()):
        unit = (*UNITS, "auto")[n % 5]
        text = f'"{number}"' if n % 2 else number
        arrive(f"x/{unit}", f'{{"i":"{n}","t":{text},"v":1}}'.encode(), said(number, unit))
    at = datetime(2026, 1, 2, 11, tzinfo=timezone.utc)
    arrive("x/auto", b'{"i":"a","t":"2026-01-02T12:00:00+01:00","v":1}', at)
    arrive("c/csv", f"a,{at.timestamp() * 1000:.3f},1".encode(), at)
    arrive(
        "c/cbor", cbor2.dumps({"i": "a", "t": at.timestamp() + 0.25, "v": 1}), at + timedelta(seconds=0.25)
    )
    arrive("c/cbor", cbor2.dumps({"i": "a", "t": at, "v": 1}), at)
    arrive("c/iso", b'{"i":"a","t":"2026-01-02 11:00:00","v":1}', at)
    for n, text in enumerate(("true", '"soon"', '"NaN"', '""', "[1]", '"12:30"', "1e999", '"1 700"')):
        arrive(f"x/{(*UNITS, 'auto')[n % 5]}", f'{{"i":"{n}","t":{text},"v":1}}'.encode(), None)
    for text in ('"12:30"', "1700000000", "170000", '"9999-12-31T23:59:59-14:00"', '"2026"'):
        arrive("c/iso", f'{{"i":"a","t":{text},"v":1}}'.encode(), None)

    rows = judged(spark, [*decoders, *forms], messages)

    found = {
        r["entry_id"]: None if r["micros"] is None else EPOCH + timedelta(microseconds=r["micros"])
        for r in rows
    }
    wrong = {messages[n].payload: (found[n], time) for n, time in expected.items() if found[n] != time}
    assert wrong == {}
    assert {r["entry_id"] for r in rows if "bad_time" in r["failed_rules"]} == {
        n for n, time in expected.items() if time is None
    }
    assert json.loads(messages[-4].payload)["t"] == 1700000000
    assert rows[-4]["reason"] == (
        "the time 1700000000 is no ISO 8601 time with a date; time_unit says how numbers are read"
    )
