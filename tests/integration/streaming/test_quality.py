"""Verdicts of Great Expectations and the split of rows come from one suite; this holds them together."""

from __future__ import annotations

import json
import os
import random
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer
from click.testing import Result
from pyspark.sql import functions as F
from typer.testing import CliRunner

from bridge.errors import ConfigError
from bridge.settings import StreamingSettings
from streaming import bronze, silver
from streaming.checkpoints import Checkpoint
from streaming.data_docs import PAGES
from streaming.decoders.settings import load_decoders
from streaming.expectations import check_suite, verdicts
from streaming.predicates import ROW_FORMS, failed_rules, load_suite, parse_suite
from streaming.quality import make_verdicts
from streaming.quality_commands import register
from streaming.tables import Tables
from tests.support import bronze_rows
from tests.support.bronze_rows import reading

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

CONF = Path(__file__).resolve().parents[3] / "conf"
WHEN = {"row_condition": "name = 'x'", "condition_parser": "spark"}
EVERY_FORM: list[tuple[str, dict[str, Any]]] = [
    ("expect_column_values_to_not_be_null", {"column": "a"}),
    ("expect_column_values_to_be_null", {"column": "b"}),
    ("expect_column_values_to_be_between", {"column": "a", "min_value": 2, "max_value": 7.5, "strict_max": True}),
    ("expect_column_values_to_be_in_set", {"column": "name", "value_set": ["x", "yy", "it's"]}),
    ("expect_column_values_to_not_be_in_set", {"column": "name", "value_set": ["yy"]}),
    ("expect_column_values_to_match_regex", {"column": "name", "regex": r"^[xy]+\d?$"}),
    ("expect_column_values_to_not_match_regex", {"column": "name", "regex": r"\d"}),
    ("expect_column_value_lengths_to_be_between", {"column": "name", "min_value": 2}),
    ("expect_column_value_lengths_to_equal", {"column": "name", "value": 2}),
    ("expect_column_pair_values_a_to_be_greater_than_b", {"column_A": "a", "column_B": "b", "or_equal": True}),
    ("expect_column_pair_values_to_be_equal", {"column_A": "a", "column_B": "b"}),
    ("expect_column_values_to_be_between", {"column": "b", "max_value": 3, **WHEN}),
    ("expect_column_values_to_be_between", {"column": "at", "min_value": "2000-01-01T00:00:00+00:00"}),
]  # fmt: skip


def generated(spark: SparkSession, count: int = 300) -> Any:
    dice = random.Random(7)
    number = [None, 0.0, 1.0, 2.0, 3.0, 7.5, 8.0, -1.0]
    names = [None, "", "x", "yy", "x1", "it's", "zz"]
    times = [None, datetime(1999, 12, 31, tzinfo=timezone.utc), datetime(2000, 1, 1, tzinfo=timezone.utc)]
    rows = [
        (dice.choice(number), dice.choice(number), dice.choice(names), dice.choice(times))
        for _ in range(count)
    ]
    return spark.createDataFrame(rows, "a double, b double, name string, at timestamp")


def test_verdict_and_split_agree_on_every_row_form(spark: SparkSession) -> None:
    entries = [{"type": t, "kwargs": k, "meta": {"rule": f"r{n:02d}"}} for n, (t, k) in enumerate(EVERY_FORM)]
    suite = parse_suite({"name": "every", "expectations": entries}, "every")
    assert {t for t, _ in EVERY_FORM} == set(ROW_FORMS)
    persistent = spark.sparkContext._jsc.getPersistentRDDs  # type: ignore[union-attr]
    before = set(persistent().keySet())  # other tests' frames, in the session that all share
    rows = generated(spark).coalesce(1).cache()
    try:
        found = {v.rule: v for v in verdicts(rows, suite)}
        split = rows.select(F.explode(failed_rules(suite)).alias("rule")).groupBy("rule").count().collect()
        cached = set(persistent().keySet()) - before
    finally:
        rows.unpersist()
    assert {v.rule: v.observed for v in found.values() if v.unexpected is None} == {}
    assert {rule: v.unexpected for rule, v in found.items() if v.unexpected} == {
        r["rule"]: r["count"] for r in split
    }
    assert all(v.success == (v.unexpected == 0) for v in found.values())
    assert len(cached) == 1  # a verdict leaves no frame of its own in memory
    assert os.environ["GX_ANALYTICS_ENABLED"] == "false"


def test_a_suite_that_great_expectations_refuses_is_named() -> None:
    suite = parse_suite({"name": "s", "expectations": [{"type": "expect_the_impossible", "kwargs": {}}]}, "s")
    with pytest.raises(ConfigError, match="'s'"):
        check_suite(suite)


@pytest.mark.long
def test_verdicts_on_what_was_judged_land_in_their_table(spark: SparkSession, tmp_path: Path) -> None:
    tables = Tables.of(StreamingSettings(root=str(tmp_path)))
    bronze.create_tables(spark, tables)
    silver.create_tables(spark, tables)
    bronze_rows.append(spark, tables, [reading(n, "a", n, 100 if n else 2000) for n in range(4)])
    suite = load_suite(CONF / "expectations" / "silver.json")
    recipe = silver.recipe_of(load_decoders(CONF / "rules.yaml"), suite, 600.0)
    batches = silver.SilverBatches(tables, Checkpoint(spark, tables.checkpoint("silver")), recipe)
    silver.query(spark, tables, batches).trigger(availableNow=True).start().awaitTermination()
    start = datetime(2000, 1, 1, tzinfo=timezone.utc)
    until = make_verdicts(spark, tables, suite, start, 100)
    assert until is not None
    assert make_verdicts(spark, tables, suite, until.replace(tzinfo=timezone.utc), 100) is None
    results = {r["rule"]: r for r in tables.quality_results.read(spark).collect()}
    assert [r.name for r in suite.rules] == [
        name for name in (r.name for r in suite.rules) if name in results
    ]
    failed = {name: r["unexpected"] for name, r in results.items() if not r["success"]}
    assert failed == {"glucose_range": 1}
    assert [name for name, r in results.items() if not r["splits_rows"]] == ["some_rows"]
    run_and_docs(spark, tables, tmp_path)


def run_and_docs(spark: SparkSession, tables: Tables, folder: Path) -> None:
    """The commands judge what they are told to, append it, and the pages say the same and load nothing."""
    app = typer.Typer()
    register(app)

    def command(*words: str) -> Result:
        return CliRunner().invoke(app, ["quality", *words, "--set", f"streaming.root={folder}"])

    passed = command("run", "--json")
    assert passed.exit_code == 0, passed.output
    body = json.loads(passed.output)
    assert (body["success"], body["table"], body["rows"]) == (True, "silver", 3)
    out = folder / "docs"
    failed = command("docs", "--table", "silver+quarantine", "--since", "1h", "--out", str(out))
    assert failed.exit_code == 1, failed.output
    assert re.search(r"glucose_range +splits rows +failed +4 +1", failed.output)
    assert re.search(r"some_rows +verdict only +ok", failed.output)
    pages = {name: (out / name).read_text(encoding="utf-8") for name in PAGES}
    for page in pages.values():
        assert not re.search(r"<(script|link|img|iframe)|(src|href)=.(https?:)?//|url\(", page)
    assert "silver+quarantine: 4 rows" in pages["index.html"]
    assert re.search(r"Unsuccessful Expectations\D+1\D", pages["index.html"])
    results = tables.quality_results.read(spark).groupBy("judged").agg(F.count_if(~F.col("success")))
    assert {row[0]: row[1] for row in results.collect()} == {"silver": 0, "silver+quarantine": 2}
    for words, said in ((("--table", "x"), "no Delta table"), (("--suite", str(folder / "none")), "none")):
        wrong = command("run", *words)
        assert isinstance(wrong.exception, ConfigError)
        assert said in str(wrong.exception)
