"""Writes the generated pages."""

from __future__ import annotations

from tests.docs.pages import PAGES

for path, render in PAGES.items():
    path.write_text(render(), encoding="utf-8")
