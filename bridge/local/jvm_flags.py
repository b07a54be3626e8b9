"""How the JVMs of the local servers compile and collect: soon, for a start in a test, or well, for the long run."""

from __future__ import annotations

from typing import Final

__all__ = ["flags"]

_QUICK: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_WELL: Final = ("-XX:+UseG1GC", "-XX:MaxGCPauseMillis=50")
"""The serial collector stands still for half a second: of the MQTT broker with a hundred thousand addresses, of Pulsar
while a long backlog is read."""


def flags(*, quick: bool) -> tuple[str, ...]:
    """Return them. ``quick`` takes half of the CPU until a server is ready, and does less at the peak."""
    return _QUICK if quick else _WELL
