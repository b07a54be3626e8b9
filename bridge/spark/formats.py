"""Joins the reading and the writing class of a Spark format.

``sources`` and ``sinks`` each offer their half of a format at registration, in any order. Spark gets a class made of
the halves that this process has so far. This class cannot be imported by name, so Spark pickles it by value for its
workers, and the halves by name.
"""

from __future__ import annotations

from typing import Final, Literal

__all__ = ["Side", "joined"]

Side = Literal["read", "write"]

_OTHER: Final[dict[Side, Side]] = {"read": "write", "write": "read"}
_halves: dict[tuple[str, Side], type] = {}


def joined(name: str, side: Side, half: type, lacking: type) -> type:
    """Offer a half of the format ``name``, and return the class to register.

    ``lacking`` replaces the other half while that is not registered: it raises an error with the remedy.
    """
    _halves[name, side] = half
    other = _halves.get((name, _OTHER[side]), lacking)
    return type(half.__name__, (half, other), {"__doc__": half.__doc__})
