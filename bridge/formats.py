"""One Spark format, two tiers: the class that reads and the class that writes, joined without knowing each other.

``sources`` and ``sinks`` each offer their half of a format when they are registered, in any order; what Spark is given
is a class made of the halves offered so far in this process. It has no name to be imported by, so Spark carries it to
its workers by value, and the halves by their names.
"""

from __future__ import annotations

from typing import Final, Literal

__all__ = ["Side", "joined"]

Side = Literal["read", "write"]

_OTHER: Final[dict[Side, Side]] = {"read": "write", "write": "read"}
_halves: dict[tuple[str, Side], type] = {}


def joined(name: str, side: Side, half: type, lacking: type) -> type:
    """Offer the half of the format ``name`` that reads or writes, and return the class to register.

    ``lacking`` stands for the other half while nobody has offered it: it raises what to do.
    """
    _halves[name, side] = half
    other = _halves.get((name, _OTHER[side]), lacking)
    return type(half.__name__, (half, other), {"__doc__": half.__doc__})
