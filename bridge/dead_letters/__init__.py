"""Dead letters: their format, the reader of their topic, and their replay to the original topics.

The modules letters, plan and records are pure.
"""

from __future__ import annotations

from bridge.dead_letters.letters import HEAD_BYTES, MAX_WHOLE_BYTES, dead_letter, letter_key

__all__ = ["HEAD_BYTES", "MAX_WHOLE_BYTES", "dead_letter", "letter_key"]
