"""JVM flags of the local servers for a quick start or for a long run."""

from __future__ import annotations

from typing import Final

__all__ = ["flags"]

_QUICK: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_LONG_RUN: Final = ("-XX:+UseG1GC", "-XX:MaxGCPauseMillis=50")
"""With G1: the serial collector pauses the MQTT broker with a hundred thousand addresses for half a second, and Pulsar
while a long backlog is read."""


def flags(*, quick: bool) -> tuple[str, ...]:
    """Return the flags. ``quick`` halves the CPU time until a server is ready, but lowers its peak throughput."""
    return _QUICK if quick else _LONG_RUN
