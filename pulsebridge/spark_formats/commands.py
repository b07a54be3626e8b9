"""``format("pulsebridge_commands")``; in the wheel ``pyspark_pulsebridge_commands``."""

from __future__ import annotations

import warnings

try:
    from sinks.commands import CommandsSink as DefaultSource  # noqa: F401
except ImportError as e:  # such as another package that is named sinks
    warnings.warn(
        f"format pulsebridge_commands is unknown: {e}. Run `pulsebridge check`",
        RuntimeWarning,
        stacklevel=1,
    )
