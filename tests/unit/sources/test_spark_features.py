from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql.pandas.group_ops import PandasGroupedOpsMixin

from bridge.errors import ConfigError
from bridge.settings import Settings
from sources.options import SourceOptions, parse
from sources.spark_features import SparkFeatures, lacking_in_batch, lacking_in_stream, spark_features
from streaming.loading import pipeline_of

SPARK_40 = SparkFeatures("4.0.3", limits=False, filters=False, filters_per_scan=False, state=False)
SPARK_42 = SparkFeatures("4.2.0", limits=True, filters=True, filters_per_scan=False, state=True)


def options(*, streaming: bool, **more: str) -> SourceOptions:
    given = {"service.url": "pulsar://localhost:6650", "topic": "t", "predefinedSubscription": "q"}
    return parse(given | more, streaming=streaming)


def test_a_streaming_query_is_warned_of_features_an_older_spark_lacks_with_the_options_without_effect() -> None:
    warning = lacking_in_stream(SPARK_40, options(streaming=True, maxRowsPerTrigger="9", minRowsPerTrigger="3"))
    assert warning is not None
    assert "Spark 4.0.3 lacks" in warning
    assert "(maxRowsPerTrigger, minRowsPerTrigger: no effect)" in warning
    for what in (
        "no limits per trigger",
        "Trigger.AvailableNow reads all in one batch",
        "no lag in the query",
    ):
        assert what in warning
    assert "no effect" not in str(lacking_in_stream(SPARK_40, options(streaming=True)))
    assert lacking_in_stream(SPARK_42, options(streaming=True, maxRowsPerTrigger="9")) is None


def test_a_batch_query_that_asked_for_filter_pushdown_is_warned() -> None:
    asked = options(streaming=False, pushFilters="true")
    assert "pushFilters: no effect" in str(lacking_in_batch(SPARK_40, asked))
    assert lacking_in_batch(SPARK_42, asked) is None
    assert lacking_in_batch(SPARK_40, replace(asked, push_filters=None)) is None


def test_alert_rules_with_state_end_the_job_with_one_line_on_spark_4_0(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("alerts: [{name: low, metric: glucose, kind: below, limit: 70}]")
    flow = pipeline_of(Settings.model_validate({"streaming": {"alerts": rules}})).flows["alerts-readings"]
    monkeypatch.delattr(PandasGroupedOpsMixin, "transformWithState", raising=False)
    with pytest.raises(ConfigError, match=r"rules with state need Spark 4\.1 or later, this is "):
        flow.query()


def test_the_installed_spark_is_asked() -> None:
    import pyspark

    assert spark_features().version == pyspark.__version__
