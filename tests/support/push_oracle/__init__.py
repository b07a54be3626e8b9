"""The former core of a partition, an inheritance chain of seven classes, unchanged but for its imports.

The differential test (``tests/unit/push/test_differential.py``) compares the present core with it.
"""
