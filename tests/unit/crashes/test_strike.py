from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from tests.crashes.cells import Cell
from tests.crashes.strike import Outcome, armed, ordered, strike

_PROGRAM = "from bridge.killpoints import reach; reach('point'); reach('point'); print('passed')"
_NONE: Any = None
"""For the servers, which a component that is none of them does not need."""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    cell = Cell("order", "point", "component")
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM], env=armed(cell, 2), stdout=subprocess.PIPE, text=True
    ) as made:
        yield made
        made.kill()


def test_the_component_dies_while_the_process_stands_at_the_point(process: subprocess.Popen[str]) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        victim = psutil.Process(other.pid)
        strike(Cell("order", "point", "component"), _NONE, _NONE, "", process.pid, lambda _: [victim])
        assert not victim.is_running() or victim.status() == psutil.STATUS_ZOMBIE
    assert process.communicate()[0] == "passed\n"


def test_the_process_at_the_point_may_be_the_component(process: subprocess.Popen[str]) -> None:
    strike(Cell("order", "point", "component"), _NONE, _NONE, "", process.pid, lambda at_point: [at_point])
    assert process.communicate()[0] == ""


def test_first_copies_are_to_be_complete_and_in_order() -> None:
    outcome = Outcome(5)
    ordered(outcome, "d", [0, 1, 0, 2, 4], range(5))
    ordered(outcome, "e", [1, 0], range(2))
    assert outcome.lost == ["d-3"]
    assert outcome.disordered == ["e: [1, 0]"]
