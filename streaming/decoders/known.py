"""Which fields of a payload a decoder knows, as a tree of names: all others are unknown. Pure.

A path that goes into an array makes the whole array known. Where a decoder takes the elements of an array, its
reading is the element, and what the message has around the array is a document of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias, Union

from streaming.decoders.paths import JsonPath
from streaming.decoders.settings import NO_ID, Decoder
from streaming.rule_fields import RuleFields, json_steps

__all__ = ["Known", "Leaf", "Tree", "known_fields", "path_of"]

_TYPES: Final = {"value": "double", "sent": "bigint"}
"""The types into which not every scalar fits; the others are text. What is no time goes to quarantine."""


@dataclass(frozen=True)
class Leaf:
    """A known field. With a type, what is at the path below it must fit it."""

    type: str | None = None
    path: str = ""


Tree: TypeAlias = dict[str, Union["Tree", Leaf]]


class Known(NamedTuple):
    """The fields that a decoder knows; None where there are no unknown ones, whatever the document holds."""

    reading: Tree | None
    message: Tree | None


def known_fields(decoder: Decoder, rules: Sequence[RuleFields]) -> Known:
    """Return what a decoder, and the topic rules in its stead, know of its payloads."""
    of_reading: list[tuple[tuple[str | int, ...], Leaf]] = []
    of_message: list[tuple[tuple[str | int, ...], Leaf]] = []

    def know(text: str | None, kind: str | None = None) -> None:
        if text is not None and text.startswith("$"):
            path = JsonPath.parse(text)
            many = decoder.elements is not None and path.of_message
            (of_message if many else of_reading).append((path.steps, Leaf(kind, path.text)))

    for name in ("id", "time", "value", "sent", "metric", "unit"):
        text = getattr(decoder, name)
        know(None if text == NO_ID else text, _TYPES.get(name))
    for text in decoder.ignored:
        know(text)
    said = [
        (steps, Leaf())
        for part in ("id", "time")
        if getattr(decoder, part) is None
        for steps in json_steps(rules, part, decoder.filter)
    ]
    if decoder.elements is None:
        return Known(_tree(of_reading + said), None)
    of_message.append((JsonPath.parse(decoder.elements).steps, Leaf()))
    return Known(_tree(of_reading), _tree(of_message + said))


def _tree(paths: Iterable[tuple[Sequence[str | int], Leaf]]) -> Tree | None:
    tree: Tree = {}
    for steps, leaf in paths:
        names = _names(steps)
        if not names:
            return None
        _insert(tree, names, leaf)
    return tree


def _insert(tree: Tree, names: Sequence[str], leaf: Leaf) -> None:
    """Put a leaf in its place; a field that is known as a whole covers what is below it."""
    at = tree
    for name in names[:-1]:
        below = at.setdefault(name, {})
        if isinstance(below, Leaf):
            return
        at = below
    there = at.get(names[-1])
    if not isinstance(there, Leaf) or there.type is None:
        at[names[-1]] = leaf


def _names(steps: Sequence[str | int]) -> list[str]:
    names: list[str] = []
    for step in steps:
        if isinstance(step, int):
            break
        names.append(step)
    return names


def path_of(names: Sequence[str]) -> str:
    """Return names as a path that Spark takes."""
    quoted = (f"'{name}'" if '"' in name else f'"{name}"' for name in names)
    return "$" + "".join(f"[{name}]" for name in quoted)
