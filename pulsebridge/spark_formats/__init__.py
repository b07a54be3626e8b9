"""Makes the formats known without a call. In the wheel each module here is a top-level one named ``pyspark_…``.

Spark imports every such module of the driver's Python, once for a session, at the first format that it looks up among
Python's, and registers the ``DefaultSource`` that it finds there. What raises there would fail all Python formats, so an
installation that is not whole only says so. They stand here, since the format ``pulsebridge`` is of two tiers.
"""
