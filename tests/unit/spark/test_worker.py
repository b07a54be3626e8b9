"""Spark's Python workers collect garbage after each task: not what they import."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc, sys
from bridge.collector import exclude_imports

exclude_imports()
kept = gc.get_freeze_count()
assert kept > 1000, kept
left = len(gc.get_objects())
exclude_imports()
assert gc.get_freeze_count() == kept
import decimal, json.tool, unittest.mock
imported = len(gc.get_objects())
assert imported > left + 1000
exclude_imports()
assert gc.get_freeze_count() > kept
assert len(gc.get_objects()) < left + 1000
"""


def test_what_is_imported_is_not_collected_again_and_what_comes_later_neither() -> None:
    """In a process of its own: what is kept out stays out for its life."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)
