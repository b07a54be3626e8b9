"""Shows text that devices, brokers or peers choose.

Examples are topics, names, payloads, reasons and errors of servers. Such text may contain line breaks, terminal
sequences, marks that reverse the reading order, or characters without a width. All output of such text uses this
module, in the log, or ``pulsebridge.output.text``, on the command line. The result is for reading and is not meant to be
decoded; exact values are in the output of ``--json``.
"""

from __future__ import annotations

import io
import sys
from typing import Final

__all__ = ["TEXT_CHARACTERS", "accept_every_character", "printable"]

TEXT_CHARACTERS: Final = 1_000
"""The maximum length of one shown value, in characters."""


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


def accept_every_character() -> None:
    """Let ``sys.stdout`` escape characters that its encoding lacks. The locale C has only ASCII."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
