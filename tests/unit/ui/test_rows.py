"""Rows of the pages: bounded and printable text, search, pages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsebridge.ui.rows import PAGE_ROWS, SearchedRows, age_text, clip, number_text, time_text, value_text

NAMES = st.lists(st.text(max_size=8), max_size=3 * PAGE_ROWS)


@given(NAMES, st.text(max_size=6))
def test_the_pages_of_a_search_are_the_rows_with_all_its_words_in_order(names: list[str], query: str) -> None:
    rows = SearchedRows(names, names)
    words = query.casefold().split()
    wanted = [name for name in names if all(word in name.casefold() for word in words)]
    first = rows.page(query)
    found = [name for number in range(1, first.pages + 1) for name in rows.page(query, number).rows]
    assert found == wanted
    assert first.found == len(wanted)
    assert all(len(rows.page(query, number).rows) <= PAGE_ROWS for number in range(1, first.pages + 1))


@given(NAMES, st.integers())
def test_a_page_that_does_not_exist_is_the_nearest_one(names: list[str], number: int) -> None:
    page = SearchedRows(names, names).page("", number)
    assert 1 <= page.number <= page.pages
    assert page.rows or not names


@given(st.text(), st.integers(1, 300))
def test_clipped_text_is_printable_and_bounded(text: str, most: int) -> None:
    shown = clip(text, most)
    assert len(shown) <= most
    assert shown.isprintable()
    shown.encode()  # also without lone surrogates


def test_a_page_says_which_rows_it_has() -> None:
    rows = SearchedRows(list(range(10_000)), [f"device-{n}" for n in range(10_000)])
    assert rows.page("", 2).text == "51–100 of 10,000"
    assert rows.page("device-9999").text == "1–1 of 1"
    assert rows.page("none").text == "no rows"


@given(st.integers(-(2**63), 2**63 - 1))
def test_every_time_has_a_text(us: int) -> None:
    assert isinstance(time_text(us), str)


def test_times_ages_and_numbers_are_short() -> None:
    assert time_text(0) == ""
    assert time_text(1_700_000_000_000_000) == "2023-11-14 22:13:20"
    assert [age_text(s) for s in (0.4, 59, 60, 7200, 200_000)] == ["0 s", "59 s", "1 min", "2 h", "2 d"]
    assert [number_text(v) for v in (1e6, 0.125, 1e300, float("nan"))] == ["1,000,000", "0.125", "1e+300", "nan"]
    assert value_text(None, "on\n") == "on\\n"
    assert value_text(21.5, "21.5") == "21.5"
