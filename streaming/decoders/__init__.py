"""How payloads become readings: what a decoder may say, and what it makes of a payload."""
