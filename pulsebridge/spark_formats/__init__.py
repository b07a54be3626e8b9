"""Registers the formats without a call. In the wheel each module here is a top-level one named ``pyspark_…``.

Spark imports every such module of the driver's Python, once for a session, at its first look-up of a Python format. It
registers each ``DefaultSource``. An exception would break all Python formats, so an incomplete installation only causes
a warning. The modules are in this package because the format ``pulsebridge`` belongs to two tiers.
"""
