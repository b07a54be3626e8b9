"""JSON paths as a decoder writes them: ``$.a['b'][0]`` in the reading, ``$$.a`` in the whole message.

They are Spark's paths into a VARIANT; what Spark would refuse when a batch runs is refused here, at load. It decides
nothing about values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

__all__ = ["JsonPath"]

_STEP: Final = re.compile(r"""\.([^.\[\]'"]+)|\[(\d{1,9})\]|\['([^']+)'\]|\["([^"]+)"\]""")


@dataclass(frozen=True)
class JsonPath:
    """A place in a document. ``of_message``: counted from the whole message, where it holds several readings."""

    text: str
    """As Spark takes it, beginning with one ``$``."""
    steps: tuple[str | int, ...]
    of_message: bool = False

    @classmethod
    def parse(cls, text: str) -> JsonPath:
        """Read a path. Raises ValueError with what to write instead."""
        if not text.startswith("$"):
            raise ValueError(f"{text!r} is no JSON path, give $.{text}")
        of_message = text.startswith("$$")
        own = text[1:] if of_message else text
        steps: list[str | int] = []
        at = 1
        while at < len(own):
            found = _STEP.match(own, at)
            if found is None:
                raise ValueError(f"{text!r} is no JSON path: {own[at:]!r} is neither .name, ['name'] nor [0]")
            name = found[1] or found[3] or found[4]
            steps.append(int(found[2]) if name is None else name)
            at = found.end()
        return cls(own, tuple(steps), of_message)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names that lead to the value, as far as the first place in an array."""
        names: list[str] = []
        for step in self.steps:
            if isinstance(step, int):
                break
            names.append(step)
        return tuple(names)
