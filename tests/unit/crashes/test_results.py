from __future__ import annotations

from tests.crashes.cells import CELLS
from tests.crashes.results import page, result_of
from tests.crashes.strike import Outcome


def test_a_page_shows_results_repeats_with_their_rule_and_what_has_not_run() -> None:
    outcome = Outcome(100, repeats={"the broker had no PUBACK": 3})
    results = [
        result_of(CELLS[0], outcome, 7, 1.0),
        result_of(CELLS[1], Outcome(50, lost=["d1-1"]), 7, 1.0),
        result_of(CELLS[2], "the step was not reached", 7, 1.0),
    ]
    assert [one["result"] for one in results] == ["ok", "1 lost", "failed"]
    text = page(results)
    assert "| ok, 3 repeated (1) | **1 lost** | **failed** | – |" in text
    assert "1. the broker had no PUBACK" in text
    assert f"3 of {len(CELLS)} cells have run." in text
