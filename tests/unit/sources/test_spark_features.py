from __future__ import annotations

from dataclasses import replace

from sources.options import SourceOptions, parse
from sources.spark_features import SparkFeatures, lacking_in_batch, lacking_in_stream, spark_features

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


def test_the_installed_spark_is_asked() -> None:
    import pyspark

    assert spark_features().version == pyspark.__version__
