"""When it is worth a record that a device is there: after a silence at once, else now and then. Pure.

Whoever waits for a device wants to hear of its first message after a silence; what it publishes after that is no news
for a while. A silence is a gap of more than a second, or, for a device that speaks seldom, of more than twice its
habit: its gap is a habit where it published nothing else since its last record. So a record comes at once and again
every ``every_s``, and a device that speaks in bursts costs at most four more in that time.

The times are seconds of the monotonic clock. Devices name themselves, so what is known of them is bounded in bytes (H10, H35); one that was
forgotten begins anew, with a record.
"""

from __future__ import annotations

import math
from typing import Final

from bridge.bounded_map import BoundedMap

__all__ = ["Sighting", "Sightings"]

_KNOWN_BYTES: Final = 32 * 1024 * 1024
"""Some 65,000 devices with usual names."""
_QUIET_S: Final = 1.0
_EXTRA: Final = 4


class Sighting:
    """What is known of one device. The owner sets ``heard`` at each message, after it has looked whether it is news:
    when ``heard`` is more than ``quiet`` ago, or ``due`` has come.
    """

    __slots__ = ("device", "due", "extra", "heard", "quiet", "told")

    def __init__(self, device: str) -> None:
        self.device = device
        self.heard = -math.inf
        """When it published last."""
        self.quiet = _QUIET_S
        """A longer gap is a silence."""
        self.due = -math.inf
        """When it is told again however it publishes."""
        self.told = -math.inf
        """When it published what was told last."""
        self.extra = 0
        """How often it was told before it was due."""


class Sightings:
    """The devices of one link."""

    def __init__(self, every_s: float, most_bytes: int = _KNOWN_BYTES) -> None:
        self._every_s = every_s
        self._known: BoundedMap[Sighting] = BoundedMap(most_bytes, each=224)

    def __len__(self) -> int:
        return len(self._known)

    def of(self, device: str) -> Sighting:
        """Return what is known of a device; the longest known one is forgotten for it."""
        found = self._known.get(device)
        if found is None:
            found = Sighting(device)
            self._known.put(device, found)
        return found

    def news(self, seen: Sighting, now: float) -> bool:
        """The device publishes. Returns whether that is told; call it before ``heard`` is set."""
        if now >= seen.due:
            if seen.due > -math.inf:
                seen.quiet = max(_QUIET_S, seen.quiet / 2)
            seen.due = now + self._every_s
            seen.extra = 0
        elif now - seen.heard > seen.quiet and seen.extra < _EXTRA:
            seen.extra += 1
            if seen.heard == seen.told:
                seen.quiet = min(self._every_s, 2 * (now - seen.heard))
            elif seen.extra == _EXTRA:
                seen.quiet = self._every_s
        else:
            return False
        seen.told = now
        return True
