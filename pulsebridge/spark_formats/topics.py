"""``format("pulsebridge")``, reading and writing; in the wheel ``pyspark_pulsebridge``."""

from __future__ import annotations

import warnings

try:
    from sinks.topics import TopicSink
    from sources.datasource import PulsebridgeDataSource

    class DefaultSource(PulsebridgeDataSource, TopicSink):
        """Pulsar topics as rows, and rows as messages of topics."""
except ImportError as e:  # such as another package that is named sources
    warnings.warn(f"format pulsebridge is unknown: {e}. Run `pulsebridge check`", RuntimeWarning, stacklevel=1)
