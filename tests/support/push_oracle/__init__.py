"""The former core of a partition, an inheritance chain of seven classes, unchanged but for its imports.
One defect is fixed here as in the present core: a command that was parked while it was in flight, and expired, stayed in
the list of parked ones, so that the one behind it was read twice and its device got nothing more (``Item.settled``).

The differential test (``tests/unit/push/test_differential.py``) compares the present core with it.
"""
