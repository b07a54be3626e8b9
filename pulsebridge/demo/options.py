"""What the user asked of one demo. Plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pulsebridge.demo.plan import FULL, Scale
from pulsebridge.demo.servers import Addresses

__all__ = ["DemoOptions"]


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The options of ``pulsebridge demo``."""

    out: Path
    scale: Scale = FULL
    chaos: bool = True
    more_chaos: tuple[str, ...] = ()
    """What is killed beside what the scale kills by itself, of ``plan.KILLABLE``."""
    keep: bool = False
    offline: bool = False
    servers: Addresses | None = None
    """Servers that run already; None: a local stack of the demo's own."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Further settings by their path."""
    sets: Sequence[str] = ()
    """Further settings as ``path=value``."""
