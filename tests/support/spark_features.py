"""Marks for what older Sparks cannot do, so that one suite serves all of them (``make matrix``)."""

from __future__ import annotations

import pytest

from sources.spark_features import spark_features

__all__ = ["needs_filters", "needs_limits"]

_spark = spark_features()

needs_limits = pytest.mark.skipif(
    not _spark.limits, reason=f"Spark {_spark.version} has no limits per trigger for Python sources"
)
needs_filters = pytest.mark.skipif(
    not _spark.filters, reason=f"Spark {_spark.version} pushes no filters to Python sources"
)
