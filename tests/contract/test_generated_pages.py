"""The generated pages of the documentation are equal to the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.hazards import HAZARDS, hazard_tests
from tests.docs.pages import PAGES


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_generated_page_is_that_of_the_code(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == PAGES[path](), "python -m tests.docs"


def test_each_hazard_with_a_test_is_on_its_page() -> None:
    numbers = [number for hazards in HAZARDS.values() for number in hazards]
    assert numbers == list(range(1, len(numbers) + 1))
    assert set(hazard_tests()) <= set(numbers), "describe the new one in tests/docs/hazards.py"
