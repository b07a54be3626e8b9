"""Dead letters and failed commands: their format and records, and the resend of both.

The modules history, letters, plan and records are pure.
"""

from __future__ import annotations

from bridge.dead_letters.letters import HEAD_BYTES, MAX_WHOLE_BYTES, dead_letter, letter_key

__all__ = ["HEAD_BYTES", "MAX_WHOLE_BYTES", "dead_letter", "letter_key"]
