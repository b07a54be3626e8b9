"""Dead letters: what they look like, how they are read back, and how they get to where they were meant to go."""

from __future__ import annotations

from bridge.dead_letters.letters import HEAD_BYTES, MAX_WHOLE_BYTES, dead_letter, letter_key

__all__ = ["HEAD_BYTES", "MAX_WHOLE_BYTES", "dead_letter", "letter_key"]
