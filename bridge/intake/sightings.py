"""Decides when a device's message requires a presence record: after a silence, else at intervals.

Push waits for the first message of a device after a silence; further messages require none for a while. A silence is a
gap of more than a second. For a device that publishes rarely it is more than twice its usual gap. A gap is usual if the
device published nothing else since its last record. So a record is due at once and then every ``every_s``. A device
that publishes in bursts costs at most four more in that time.

The times are seconds of the monotonic clock. Devices choose their names, so their states are bounded in bytes (H10,
H35). A forgotten device starts with a record.
"""

from __future__ import annotations

import math
from typing import Final

from bridge.bounded_map import BoundedMap

__all__ = ["Sighting", "Sightings"]

_KNOWN_BYTES: Final = 32 * 1024 * 1024
"""About 65,000 devices with usual names."""
_QUIET_S: Final = 1.0
_EXTRA: Final = 4


class Sighting:
    """The state of one device.

    A record may be due if ``last_message`` is more than ``quiet`` ago or ``due`` has come. The owner checks this at
    each message, then sets ``last_message``.
    """

    __slots__ = ("device", "due", "extra", "last_message", "last_record", "quiet")

    def __init__(self, device: str) -> None:
        self.device = device
        self.last_message = -math.inf
        """The time of its last message."""
        self.quiet = _QUIET_S
        """A longer gap is a silence."""
        self.due = -math.inf
        """The time of its next record if it keeps publishing."""
        self.last_record = -math.inf
        """The time of the last message with a record."""
        self.extra = 0
        """Records before ``due``."""


class Sightings:
    """The devices of one link."""

    def __init__(self, every_s: float, most_bytes: int = _KNOWN_BYTES) -> None:
        self._every_s = every_s
        self._known: BoundedMap[Sighting] = BoundedMap(most_bytes, each=224)

    def __len__(self) -> int:
        return len(self._known)

    def of(self, device: str) -> Sighting:
        """Return the state of a device; a new device may evict the oldest one."""
        found = self._known.get(device)
        if found is None:
            found = Sighting(device)
            self._known.put(device, found)
        return found

    def record_due(self, seen: Sighting, now: float) -> bool:
        """Return whether a message requires a record; call it before ``last_message`` is set."""
        if now >= seen.due:
            if seen.due > -math.inf:
                seen.quiet = max(_QUIET_S, seen.quiet / 2)
            seen.due = now + self._every_s
            seen.extra = 0
        elif now - seen.last_message > seen.quiet and seen.extra < _EXTRA:
            seen.extra += 1
            if seen.last_message == seen.last_record:
                seen.quiet = min(self._every_s, 2 * (now - seen.last_message))
            elif seen.extra == _EXTRA:
                seen.quiet = self._every_s
        else:
            return False
        seen.last_record = now
        return True
