"""``format("pulsebridge_groups")``; in the wheel ``pyspark_pulsebridge_groups``."""

from __future__ import annotations

import warnings

try:
    from sinks.groups import GroupsSink as DefaultSource  # noqa: F401
except ImportError as e:  # such as another package that is named sinks
    warnings.warn(
        f"format pulsebridge_groups is unknown: {e}. Run `pulsebridge check`",
        RuntimeWarning,
        stacklevel=1,
    )
