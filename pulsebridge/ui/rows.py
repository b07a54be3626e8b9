"""Rows of the pages: bounded text, search, and pages of a list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from bridge.display import printable
from pulsebridge.output.text import iso

__all__ = [
    "CELL",
    "PAGE_ROWS",
    "Page",
    "SearchedRows",
    "age_text",
    "clip",
    "number_text",
    "searched",
    "time_text",
    "value_text",
]

PAGE_ROWS: Final = 50
"""Rows of one page of a list."""
CELL: Final = 120
"""Maximum length of a cell, in characters."""
_QUERY: Final = 200

T = TypeVar("T")


def clip(value: object, most: int = CELL) -> str:
    """Return a value as one printable line of at most ``most`` characters; empty for None."""
    return "" if value is None else printable(str(value), most)


def time_text(us: int) -> str:
    """Return a time in µs since the epoch in UTC, to the second; empty if it is not known."""
    try:
        return iso(us).replace("T", " ").removesuffix("Z") if us else ""
    except (ValueError, OverflowError, OSError):  # a device's clock may show any time
        return "invalid time"


def age_text(seconds: float) -> str:
    """Return a duration in its largest unit: ``8 s``, ``3 min``, ``2 h``, ``5 d``."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{seconds:.0f} s"


def number_text(value: float) -> str:
    """Return a number with at most six digits, a whole number with all of them."""
    return f"{int(value):,}" if value == value and abs(value) < 2**53 and value == int(value) else f"{value:.6g}"


def value_text(value: float | None, text: str | None) -> str:
    """Return a reading: its number, else its text."""
    return clip(text) if value is None else number_text(value)


@dataclass(frozen=True)
class Page(Generic[T]):
    """One page of the rows that a search found."""

    rows: Sequence[T]
    number: int
    """Its number, from 1."""
    pages: int
    """Number of pages, at least 1."""
    found: int
    """Number of found rows on all pages."""

    @property
    def text(self) -> str:
        """Which rows it has: ``51–100 of 10,000``."""
        first = (self.number - 1) * PAGE_ROWS
        return f"{first + 1:,}–{first + len(self.rows):,} of {self.found:,}" if self.rows else "no rows"


class SearchedRows(Generic[T]):
    """Rows with their searched text. A search takes all its words in any order, without regard to case."""

    def __init__(self, rows: Sequence[T], texts: Sequence[str]) -> None:
        self.rows = rows
        self._texts = [text.casefold() for text in texts]
        self._last: tuple[str, Sequence[T]] = "", rows

    def __len__(self) -> int:
        return len(self.rows)

    def search(self, query: str) -> Sequence[T]:
        """Return the rows that contain each word of the query, in order."""
        words = query[:_QUERY].casefold().split()
        if not words:
            return self.rows
        last, found = self._last
        if last != query:
            found = [row for row, text in zip(self.rows, self._texts, strict=True) if all(w in text for w in words)]
            self._last = query, found
        return found

    def page(self, query: str = "", number: int = 1) -> Page[T]:
        """Return a page of the found rows: the nearest existing one to ``number``."""
        found = self.search(query)
        pages = max(1, -(-len(found) // PAGE_ROWS))
        number = min(max(number, 1), pages)
        return Page(found[(number - 1) * PAGE_ROWS : number * PAGE_ROWS], number, pages, len(found))


def searched(rows: Sequence[dict[str, Any]], *fields: str) -> SearchedRows[dict[str, Any]]:
    """Return rows that are searched by the text of these fields."""
    return SearchedRows(rows, ["\n".join(str(row.get(field) or "") for field in fields) for row in rows])
