from __future__ import annotations

from tests.crashes.cells import CELLS, chosen, missing, third
from tests.support import kill_points


def test_each_cell_is_named_once_and_its_point_exists() -> None:
    points = {point for name, value in vars(kill_points).items() if name.endswith("KILL_POINTS") for point in value}
    assert len({cell.name for cell in CELLS}) == len(CELLS)
    assert {cell.point for cell in CELLS} <= points


def test_a_cell_is_missing_until_its_commit_has_a_result() -> None:
    result = {"cell": CELLS[0].name, "commit": "a", "result": "ok"}
    assert missing(CELLS, [result], "a") == list(CELLS[1:])
    assert missing(CELLS, [result], "b") == list(CELLS)


def test_commits_choose_different_thirds_and_all_cells_in_time() -> None:
    thirds = [third(CELLS, str(commit)) for commit in range(60)]
    assert all(len(one) == -(-len(CELLS) // 3) for one in thirds)
    assert third(CELLS, "7") == thirds[7]
    assert {cell for one in thirds for cell in one} == set(CELLS)


def test_a_pattern_chooses_cells_by_name() -> None:
    assert {cell.component for cell in chosen(CELLS, "*/bookie")} == {"bookie"}
