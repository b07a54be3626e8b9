"""Text that devices choose, as it is shown: one line, printable, bounded."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from bridge.dead_letters import dead_letter
from bridge.display import accept_every_character, printable
from pulsebridge.output.devices import table
from pulsebridge.output.text import json_text, markup, text_of

anything = st.text(st.characters(exclude_categories=()), max_size=40) | st.sampled_from(
    [
        "a\nb",
        "\x1b[2J",
        "\x9b31m",
        "[red]x[/red]",
        "\u202egnp.exe",
        "a\u2028b",
        "\ud800",
        "\ufeff",
        "\U000e0001",
    ]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | anything,
    lambda one: st.lists(one, max_size=3) | st.dictionaries(anything, one, max_size=3),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plant/Prüfstand 7/工場/😀", "plant/Prüfstand 7/工場/😀"),
        ("a\nb\r\n\tc", r"a\nb\r\n\tc"),
        ("\x1b[31mred\x9b0m\x7f", r"\x1b[31mred\x9b0m\x7f"),
        ("a\u2028b\u2029c\x85d", r"a\u2028b\u2029c\x85d"),
        ("\u202egnp.exe\u2066", r"\u202egnp.exe\u2066"),
        ("zero\u200bwidth\ufeff", r"zero\u200bwidth\ufeff"),
        ("\ud800\ufffe\U0010ffff\U000e0041", r"\ud800\ufffe\U0010ffff\U000e0041"),
    ],
)
def test_h38_what_is_not_printable_is_an_escape(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(anything | st.text(min_size=50), st.integers(1, 60))
def test_h38_any_text_is_one_printable_line_within_its_length(text: str, most: int) -> None:
    shown = printable(text, most)
    assert shown.isprintable()
    assert len(shown) <= most
    assert printable(shown, most) == shown
    if text.isprintable() and len(text) <= most:
        assert shown == text
    assert len(text_of([text, "end"]).split("\n")) == 2


@given(values, st.sampled_from([None, 2]))
def test_h38_json_is_exact_and_printable(value: Any, indent: int | None) -> None:
    text = json_text(value, indent)
    assert json.loads(text) == value
    assert all(line.isprintable() for line in text.split("\n"))
    assert text.encode()


@given(st.lists(st.tuples(anything, anything), max_size=4))
def test_h38_a_table_has_a_line_for_each_row(rows: list[tuple[str, str]]) -> None:
    lines = table(("device", "state"), rows)
    assert len(lines) == len(rows) + 1
    assert all(line.isprintable() for line in lines)


@given(anything)
@example("\\[")
@example("[b\\")
@example("\\\\[red]x[/red]\\")
def test_h38_rich_prints_the_text_and_not_its_markup(text: str) -> None:
    console = Console(file=(out := io.StringIO()), width=2000, force_terminal=True, color_system="truecolor")
    console.print(f"x{markup(text)}y", highlight=False, emoji=False, soft_wrap=True)
    assert out.getvalue() == f"x{printable(text)}y\n"
    assert Text.from_markup(markup(text), emoji=False).plain == printable(text)


@given(anything)
def test_h38_the_reason_of_a_dead_letter_is_printable_and_bounded(text: str) -> None:
    _, properties = dead_letter(b"x", topic="t", device="d", reason=f"no number: {text * 100}", at_us=1)
    reason = properties["pb.dead.reason"]
    assert reason.isprintable()
    assert len(reason) <= 1000


def test_h38_an_encoding_that_lacks_a_character_does_not_end_the_writer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    accept_every_character()
    out.write("工\n")
    out.flush()
    assert out.buffer.getvalue() == b"\\u5de5\n"  # type: ignore[attr-defined]
