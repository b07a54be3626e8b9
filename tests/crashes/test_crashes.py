"""The third of the crash matrix that this commit's hash chooses: what fits into four minutes, in random order."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.crashes.cells import CELLS, Cell, third
from tests.crashes.results import result_of
from tests.crashes.worlds import Worlds
from tests.support.folders import own_folder
from tests.support.stack import new_stack

pytestmark = [pytest.mark.stack, pytest.mark.spark, pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(600)]

SECONDS: Final = float(os.environ.get("TEST_CRASHES_S", "240"))
"""After so many seconds no further cell begins."""
_began: Final[list[float]] = []


def commit() -> str:
    """Return the hash of HEAD; TEST_CRASHES_COMMIT repeats the choice of another one."""
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    )
    return os.environ.get("TEST_CRASHES_COMMIT") or done.stdout.strip()


@pytest.fixture(scope="module")
def worlds(_nothing_left_behind: None) -> Iterator[Worlds]:
    """Servers, and the driver of Spark, which all cells share."""
    with new_stack(cluster=True) as stack, own_folder("crashes") as folder, Worlds(stack, folder) as made:
        yield made


@pytest.mark.parametrize("cell", third(CELLS, commit()), ids=lambda cell: cell.name)
def test_a_component_killed_at_a_step_loses_nothing_and_each_repeat_has_its_rule(cell: Cell, worlds: Worlds) -> None:
    _began.append(time.monotonic())
    if _began[-1] - _began[0] > SECONDS:
        pytest.skip(f"{SECONDS:.0f} s have passed: TEST_CRASHES_S gives more")
    seed = random.randrange(2**32)
    result = result_of(cell, worlds.run(cell, seed), seed, 0.0)
    print(f"{cell.name}, seed {seed}: {result['result']}, repeats {result['repeats']}")
    assert result["result"] == "ok", result
