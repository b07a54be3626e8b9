"""Text on the terminal, also text that devices, brokers or peers choose (``bridge.display``): lines, cells, JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any, Final

from bridge.display import printable

__all__ = ["CELL_CHARACTERS", "iso", "json_text", "markup", "text_of"]

CELL_CHARACTERS: Final = 200
"""The maximum length of a table's cell. The longest cell sets the length of all lines of the table."""
_LINE_CHARACTERS: Final = 20_000
_BEFORE_BRACKET: Final = re.compile(r"(\\*)(\[|\Z)")


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
