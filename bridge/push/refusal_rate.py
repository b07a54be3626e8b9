"""How often devices get an answer to a resume request that is refused (H47). Pure; times are seconds.

A refusal costs a publish, and any client may provoke one for any name. So each device gets one in ``every_s``, and all
devices of a partition together ``per_s`` in a second. The memory for it has a limit in bytes.
"""

from __future__ import annotations

from typing import Final

__all__ = ["RefusalRate"]

_BYTES: Final = 1024 * 1024
_ENTRY_BYTES: Final = 100
"""What an entry takes beside its name, about."""


class RefusalRate:
    """Which refusals are sent."""

    def __init__(self, per_s: float, every_s: float, max_bytes: int = _BYTES) -> None:
        self._per_s = per_s
        self._every_s = every_s
        self._max_bytes = max_bytes
        self._left = max(1.0, per_s)
        self._filled_at = 0.0
        self._last: dict[str, float] = {}  # in the order of time
        self._bytes = 0

    @property
    def size(self) -> int:
        """Bytes in use, about."""
        return self._bytes

    def allows(self, device: str, now: float) -> bool:
        """Return whether a refusal may be sent to ``device`` now, and count it if so."""
        self._left = min(max(1.0, self._per_s), self._left + (now - self._filled_at) * self._per_s)
        self._filled_at = now
        self._forget(now - self._every_s)
        if device in self._last or self._left < 1.0:
            return False
        self._left -= 1.0
        self._last[device] = now
        self._bytes += _size(device)
        return True

    def _forget(self, before: float) -> None:
        while self._last:
            device = next(iter(self._last))
            if self._last[device] > before and self._bytes <= self._max_bytes:
                return
            del self._last[device]
            self._bytes -= _size(device)


def _size(device: str) -> int:
    return _ENTRY_BYTES + 4 * len(device)
