"""``format("pulsebridge_mqtt")``; in the wheel ``pyspark_pulsebridge_mqtt``."""

from __future__ import annotations

import warnings

try:
    from sinks.mqtt import MqttSink as DefaultSource  # noqa: F401
except ImportError as e:  # such as another package that is named sinks
    warnings.warn(f"format pulsebridge_mqtt is unknown: {e}. Run `pulsebridge check`", RuntimeWarning, stacklevel=1)
