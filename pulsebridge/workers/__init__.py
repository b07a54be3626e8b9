"""Several ingest workers on one machine: ``pulsebridge ingest --workers N``.

The module restarts is pure.
"""
