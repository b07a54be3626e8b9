"""Shows text that devices, brokers or peers choose.

Examples are topics, names, payloads, reasons and errors of servers. Such text may contain line breaks, terminal
sequences, marks that reverse the reading order, or characters without a width. All output of such text uses this
module: the log, tables, YAML comments, JSON, error lines. The result is for reading and is not meant to be decoded;
exact values are in the output of ``--json``.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any, Final

__all__ = [
    "CELL_CHARACTERS",
    "TEXT_CHARACTERS",
    "accept_every_character",
    "iso",
    "json_text",
    "markup",
    "printable",
    "text_of",
]

TEXT_CHARACTERS: Final = 1_000
"""The maximum length of one shown value, in characters."""
CELL_CHARACTERS: Final = 200
"""The maximum length of a table's cell. The longest cell sets the length of all lines of the table."""
_LINE_CHARACTERS: Final = 20_000
_BEFORE_BRACKET: Final = re.compile(r"(\\*)(\[|\Z)")


def printable(text: str, most: int = TEXT_CHARACTERS) -> str:
    r"""Return ``text`` in one line of at most ``most`` characters.

    The last character is ``…`` if the text was longer. Characters that Unicode does not class as printable become
    escapes such as ``\n``, ``\x1b`` or ``\u202e``: controls, line separators, format characters (reading order, zero
    width), surrogates, spaces other than U+0020.
    """
    if len(text) <= most and text.isprintable():
        return text
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: most + 1])
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def text_of(lines: Iterable[str]) -> str:
    """Return ``lines`` as one text for a terminal. Each stays one line."""
    return "\n".join(printable(line, _LINE_CHARACTERS) for line in lines)


def markup(text: str) -> str:
    """Return ``text`` for a string that rich prints: printable, and its brackets are not rich's markup."""
    return _BEFORE_BRACKET.sub(_escaped_bracket, printable(text))


def _escaped_bracket(found: re.Match[str]) -> str:
    # rich.markup.escape leaves a bracket that begins no tag, but rich removes a backslash before it. Before a tag rich
    # shows two backslashes as one, so an empty tag follows them.
    slashes, bracket = found.groups()
    return (slashes * 2 + "[b][/b]" if slashes else "") + ("\\[" if bracket else "")


def json_text(value: Any, indent: int | None = None) -> str:
    r"""Return ``value`` as JSON, exactly. Characters that are not printable are escaped as ``\u…``."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return "\n".join(line if line.isprintable() else _escaped(line) for line in text.split("\n"))


def _escaped(line: str) -> str:
    # Outside its strings JSON is ASCII, and json.dumps alone leaves DEL and all above as they are.
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)


def iso(us: int) -> str:
    """Return a time in µs since the epoch as ISO 8601 in UTC, with seconds."""
    return datetime.fromtimestamp(us / 1e6, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def accept_every_character() -> None:
    """Let ``sys.stdout`` escape characters that its encoding lacks. The locale C has only ASCII."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
