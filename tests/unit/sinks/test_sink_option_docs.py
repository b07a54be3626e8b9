"""The page of the sinks' options says what the code does."""

from __future__ import annotations

from pathlib import Path

from sinks.option_docs import render
from sinks.option_names import OPTIONS

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "sink-options.md"


def test_the_page_is_the_one_that_the_code_prints() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "python -m sinks.option_docs > docs/reference/sink-options.md"


def test_the_page_has_every_option_of_every_format() -> None:
    for name, options in OPTIONS.items():
        section = render().partition(f'## `format("{name}")`')[2].partition("\n## ")[0]
        assert all(f"`{option}`" in section for option in options)
