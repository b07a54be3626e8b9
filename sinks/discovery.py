"""Makes ``format("pulsebridge_commands")`` known without a call: in the wheel this file is the module
``pyspark_pulsebridge_commands``, which Spark finds by its name, as it does that of the source.
"""

from __future__ import annotations

import warnings

try:
    from sinks.commands import CommandsSink as DefaultSource  # noqa: F401
except ImportError as e:  # such as another package that is named sinks
    warnings.warn(
        f"format pulsebridge_commands stays unknown: {e}; see `pulsebridge check`",
        RuntimeWarning,
        stacklevel=1,
    )
