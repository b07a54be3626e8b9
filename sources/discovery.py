"""Makes ``format("pulsebridge")`` known without a call: in the wheel this file is the module ``pyspark_pulsebridge``.

Spark imports every top-level module of the driver's Python whose name begins with ``pyspark_``, once for a session,
at the first format that it looks up among Python's, and registers the ``DefaultSource`` that it finds there. What
raises here would fail all Python formats, so an installation that is not whole only says so.
"""

from __future__ import annotations

import warnings

try:
    from sources.datasource import PulsebridgeDataSource as DefaultSource  # noqa: F401
except ImportError as e:  # such as another package that is named sources
    warnings.warn(
        f"format pulsebridge stays unknown: {e}; see `pulsebridge check`", RuntimeWarning, stacklevel=1
    )
