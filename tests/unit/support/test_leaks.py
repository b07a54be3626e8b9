"""The check of what a test run leaves behind sees its own folders, and no one else's."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.folders import made_folder, own_folder
from tests.support.leaks import Footprint, leaks_since


def folders_since(before: Footprint) -> list[str]:
    """It ignores resources of other tests in the same process."""
    return [leak for leak in leaks_since(before, grace_s=0) if leak.startswith("folder ")]


def test_a_folder_of_ours_is_a_leak_and_that_of_another_run_is_not() -> None:
    before = Footprint.now()
    code = "from tests.support.folders import made_folder; print(made_folder('bench'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    other = Path(done.stdout.strip())
    ours = made_folder("bench")
    try:
        assert other.is_dir()
        assert folders_since(before) == [f"folder {ours}"]
    finally:
        shutil.rmtree(other)
        shutil.rmtree(ours)
    with own_folder("chaos") as kept:
        assert folders_since(before) == [f"folder {kept}"]
    assert folders_since(before) == []
