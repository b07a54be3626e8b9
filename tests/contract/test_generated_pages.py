"""The generated pages of the documentation are equal to the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import PAGES


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_generated_page_is_that_of_the_code(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == PAGES[path](), "python -m tests.docs"
