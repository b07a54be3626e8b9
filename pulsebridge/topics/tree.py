"""Topic tree in bounded memory, with statistics of its levels.

A broker may have any number of topics. The tree keeps the first names under each level and counts the others together.
It estimates the number of all names (K minimum values). It does not count the broker's own topics, which begin with
``$``. ``pulsebridge.topics.proposing`` evaluates the counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import heappush, heapreplace
from typing import Final

from pulsebridge.topics.payloads import Kind, device_paths, kind_of
from pulsebridge.topics.schemas import Fields, Room

__all__ = ["Distinct", "LevelShape", "Node", "Shape", "TopicTree"]

_ID: Final = re.compile(r"\d|^[0-9a-fA-F]{6,}$")
_SAMPLES: Final = 500
_SCHEMA_SAMPLES: Final = 50
"""Payloads of one topic whose fields are inspected."""


class Distinct:
    """Number of distinct texts: exact up to ``size``, then an estimate within some 15 %."""

    __slots__ = ("_heap", "_kept", "_size")

    def __init__(self, size: int = 64) -> None:
        self._size = size
        self._heap: list[int] = []  # negated, so that the largest kept is at the top
        self._kept: set[int] = set()

    def add(self, text: str) -> bool:
        """Count one text. Return whether it was new, as far as that is known."""
        value = int.from_bytes(blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).digest(), "big")
        if value in self._kept:
            return False
        if len(self._heap) < self._size:
            heappush(self._heap, -value)
        elif value < -self._heap[0]:
            self._kept.discard(-heapreplace(self._heap, -value))
        else:
            return False
        self._kept.add(value)
        return True

    @property
    def count(self) -> int:
        """The approximate number of distinct texts."""
        if len(self._heap) < self._size:
            return len(self._heap)
        return max(self._size, round((self._size - 1) * 2**64 / -self._heap[0]))


@dataclass(slots=True)
class Node:
    """One level of the tree: counts of exactly this topic, and of the topics below it."""

    messages: int = 0
    retained: int = 0
    size: int = 0
    """Bytes of all payloads."""
    largest: int = 0
    kinds: dict[Kind, int] = field(default_factory=dict)
    fields: Fields | None = None
    """Fields of its JSON objects."""
    below: int = 0
    """Messages on topics below this one."""
    children: dict[str, Node] = field(default_factory=dict)
    others: Node | None = None
    """All other names, counted together."""
    names: Distinct = field(default_factory=Distinct)
    """Names of the level below."""

    def count(self, payload: bytes, kind: Kind, body: object, room: Room, retained: bool) -> None:
        """Count one message."""
        if isinstance(body, dict) and self.kinds.get("JSON", 0) < _SCHEMA_SAMPLES:
            self.fields = self.fields or Fields()
            self.fields.add(body, room)
        self.messages += 1
        self.retained += retained
        self.size += len(payload)
        self.largest = max(self.largest, len(payload))
        self.kinds[kind] = self.kinds.get(kind, 0) + 1


@dataclass(slots=True)
class LevelShape:
    """Statistics of one level of many topics."""

    names: Distinct = field(default_factory=lambda: Distinct(128))
    prefixes: Distinct = field(default_factory=lambda: Distinct(128))
    """Topic prefixes up to and with this level."""
    messages: int = 0
    new_names: int = 0
    ids: int = 0
    """Number of new names that look like an id."""
    example: str = ""
    whole: bool = True
    """Whether the example is the whole name."""


@dataclass(slots=True)
class Shape:
    """Statistics of the topics of one root, or of all."""

    levels: list[LevelShape] = field(default_factory=list)
    depths: dict[int, int] = field(default_factory=dict)
    """Number of levels → messages."""
    messages: int = 0
    parsed: int = 0
    paths: dict[str, tuple[list[int], Distinct]] = field(default_factory=dict)
    """Paths in JSON payloads that may contain a device name → messages that have the path, and its texts."""


class TopicTree:
    """Counts messages within the given limits, for any topics.

    ``max_nodes`` bounds the nodes of the tree and ``max_children`` the names kept under one. ``max_roots`` bounds the
    first levels whose shape is kept, ``max_depth`` the inspected levels and ``max_level`` the characters of a name.
    """

    def __init__(
        self,
        *,
        max_nodes: int = 5_000,
        max_children: int = 40,
        max_roots: int = 100,
        max_depth: int = 10,
        max_level: int = 100,
    ) -> None:
        self.root = Node()
        self.topics = Distinct(1024)
        self.messages = 0
        self.retained = 0
        self.whole = Shape()
        self.shapes: dict[str, Shape] = {}
        self.nodes = 1
        self.unfolded = 0
        """Messages whose topics are only partly in the tree, because it is full or they have too many levels."""
        self._room = Room()
        self._limits = (max_nodes, max_children, max_roots, max_depth, max_level)

    def add(self, topic: str, payload: bytes, *, retained: bool = False) -> None:
        """Count a message; ignore topics that begin with ``$``."""
        if not topic or topic.startswith("$"):
            return
        if not topic.isascii():  # bytes that are not UTF-8 arrive as lone surrogates
            topic = topic.encode("utf-8", "backslashreplace").decode()
        levels = topic.split("/")
        kind, body = kind_of(payload)
        self.messages += 1
        self.retained += retained
        self.topics.add(topic)
        self._node(levels).count(payload, kind, body, self._room, retained)
        self._shape(self.whole, levels, body)
        shape = self.shapes.get(levels[0])
        if shape is None and len(self.shapes) < self._limits[2] and len(levels[0]) <= self._limits[4]:
            shape = self.shapes[levels[0]] = Shape()
        if shape is not None:
            self._shape(shape, levels, body)

    def _node(self, levels: list[str]) -> Node:
        max_nodes, max_children, _, max_depth, max_level = self._limits
        node = self.root
        for level in levels[:max_depth]:
            node.names.add(level)
            found = node.children.get(level)
            if found is None:
                full = len(node.children) >= max_children or len(level) > max_level
                if full and node.others is not None:
                    found = node.others
                elif self.nodes >= max_nodes:
                    self.unfolded += 1
                    return node
                else:
                    found = Node()
                    self.nodes += 1
                    if full:
                        node.others = found
                    else:
                        node.children[level] = found
            node.below += 1
            node = found
        self.unfolded += len(levels) > max_depth
        return node

    def _shape(self, shape: Shape, levels: list[str], body: object) -> None:
        max_depth = self._limits[3]
        shape.messages += 1
        depth = min(len(levels), max_depth + 1)
        shape.depths[depth] = shape.depths.get(depth, 0) + 1
        for number, level in enumerate(levels[:max_depth]):
            if number == len(shape.levels):
                shape.levels.append(LevelShape())
            one = shape.levels[number]
            one.messages += 1
            one.prefixes.add("/".join(levels[: number + 1]))
            if one.names.add(level):
                one.new_names += 1
                one.ids += _ID.search(level) is not None
                if one.new_names == 1:
                    one.example = level[: self._limits[4]]
                    one.whole = one.example == level
        if body is None or shape.parsed >= _SAMPLES:
            return
        shape.parsed += 1
        for path, text in device_paths(body):
            if path in shape.paths or len(shape.paths) < 40:
                seen, texts = shape.paths.setdefault(path, ([0], Distinct()))
                seen[0] += 1
                texts.add(text)
