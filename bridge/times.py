"""Times and durations in the form that people write and read."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Final

from bridge.errors import ConfigError

__all__ = ["duration_s", "iso", "since_us"]

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d|)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def duration_s(text: str, bare: str = "") -> float | None:
    """Return the seconds of ``250ms``, ``90s``, ``15m``, ``2h`` or ``3d``; None for any other text.

    ``bare`` is the unit of a number alone; empty if a number needs a unit.
    """
    found = _DURATION.fullmatch(text.strip())
    unit = "" if found is None else found[2] or bare
    return None if found is None or not unit else float(found[1]) * _SECONDS[unit]


def iso(us: int) -> str:
    """Return a time in µs since the epoch as ISO 8601 in UTC, with seconds."""
    return datetime.fromtimestamp(us / 1e6, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def since_us(text: str, now_us: int) -> int:
    """Read an age (``90s``, ``15m``, ``2h``, ``3d``) or an ISO time. Raises ConfigError."""
    age_s = duration_s(text)
    if age_s is not None:
        return now_us - int(age_s * 1_000_000)
    try:
        at = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    except ValueError as e:
        raise ConfigError(
            f"--since {text}: neither an age nor a time",
            remedy="for example --since 2h or 2026-01-31T12:00:00Z",
        ) from e
    return int((at if at.tzinfo else at.replace(tzinfo=timezone.utc)).timestamp() * 1_000_000)
