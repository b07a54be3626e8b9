"""MQTT filters with named captures, and the templates that are filled from them.

It decides the valid form of filters and templates, and how captured text is encoded into a Pulsar name.
``bridge.routing.mapper`` decides the rule of a topic, ``bridge.routing.rules`` the collisions of rules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from string import Formatter
from typing import Final

from bridge.routing.message_fields import FIELD_KINDS, MessageField
from bridge.routing.patterns import Pattern, Star

__all__ = ["MAX_LOCAL_NAME", "Filter", "Template", "encode_local", "encode_piece"]

MAX_LOCAL_NAME: Final = 240
"""Maximum length of a local name that mapping makes, in characters; Pulsar uses it in paths and URLs."""

_CAPTURE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_LEVEL_NAME: Final = re.compile(r"level([1-9][0-9]*)\Z")
_SAFE: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")
_LOCAL_LITERAL: Final = re.compile(r"[A-Za-z0-9_.-]*\Z")


def encode_piece(text: str) -> str:
    """Encode captured text for a Pulsar name: letters, digits and ``_.-`` stay, other bytes become ``=XX``.

    It is injective and never empty, and its characters are valid in all Pulsar names. It uses ``=`` instead of ``%``,
    so that no HTTP proxy before Pulsar's admin decodes it. Text of dots alone is encoded, too, because in a path it
    would be another folder.
    """
    if not text:
        return "=."  # no other text has a dot after "="
    if text.strip(".") == "":
        return "=2E" * len(text)
    return "".join(chr(b) if b in _SAFE else f"={b:02X}" for b in text.encode())


def encode_local(name: str) -> str:
    """Encode the parts of a composed name that are special in Pulsar: ``-partition-`` and ``__``.

    It is injective for names of templates, because ``encode_piece`` produces neither ``=2D`` nor ``=5F``.
    """
    return re.sub(r"_(?=_)", "=5F", re.sub(r"-(?=partition-)", "=2D", name))


@dataclass(frozen=True, slots=True)
class Filter:
    """An MQTT filter with named captures."""

    mqtt: str
    """The filter for SUBSCRIBE, without the names."""
    levels: tuple[str | Star, ...]
    names: tuple[str | None, ...]
    """Name of each level's capture, None without one."""

    @classmethod
    def parse(cls, text: str) -> Filter:
        """Compile a filter. Raises ValueError with the invalid level (MQTT-4.7.1)."""
        levels: list[str | Star] = []
        names: list[str | None] = []
        given = text.split("/")
        for number, level in enumerate(given, 1):
            star = {"+": Star.LEVEL, "#": Star.REST}.get(level[:1])
            if star is Star.REST and number < len(given):
                raise ValueError(f"filter {text!r}: '#' matches all the rest, so nothing may follow level {number}")
            if star is None and ("+" in level or "#" in level):
                raise ValueError(
                    f"filter {text!r}: '+' and '#' must begin level {number} ({level!r}), a name may follow"
                )
            if "\0" in level:
                raise ValueError(f"filter {text!r}: level {number} has U+0000, which MQTT forbids")
            name = level[1:] if star is not None and len(level) > 1 else None
            if name is not None and not _CAPTURE_NAME.match(name):
                raise ValueError(f"filter {text!r}: {name!r} is not a name of letters, digits and _")
            if name is not None and (name in names or name == "mqtt_topic" or _LEVEL_NAME.match(name)):
                raise ValueError(f"filter {text!r}: the name {name!r} is in use or reserved")
            levels.append(level if star is None else star)
            names.append(name)
        if text.startswith("$"):
            raise ValueError(f"filter {text!r}: topics that begin with '$' are the broker's own and are not ingested")
        mqtt = "/".join({Star.LEVEL: "+", Star.REST: "#"}[x] if isinstance(x, Star) else x for x in levels)
        return cls(mqtt, tuple(levels), tuple(names))

    @classmethod
    def of_settings(cls, text: str) -> Filter:
        """Compile a filter from the settings. Raises ValueError also for braces, which capture nothing."""
        for number, level in enumerate(text.split("/"), 1):
            if "{" in level or "}" in level:
                raise ValueError(
                    f"filter {text!r}: level {number} ({level!r}) matches only this text; a capture is +name"
                )
        return cls.parse(text)

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """The topics that it matches; ``a/#`` also matches ``a`` (MQTT-4.7.1-2)."""
        whole = tuple(part for level in self.levels for part in ("/", level))[1:]
        return (whole, whole[:-2]) if len(self.levels) > 1 and self.levels[-1] is Star.REST else (whole,)

    def match(self, levels: list[str]) -> dict[str, str] | None:
        """Return the captures if a topic of these levels matches, else None.

        A named ``#rest`` matches at least one level, because it must capture a text. Wildcards in the first level do
        not match ``$`` topics (MQTT-4.7.2-1): callers leave these out.
        """
        mine = self.levels
        rest = mine[-1] is Star.REST
        fixed = len(mine) - 1 if rest else len(mine)
        if len(levels) < fixed or (not rest and len(levels) > fixed):
            return None
        if rest and self.names[-1] is not None and len(levels) == fixed:
            return None
        captures: dict[str, str] = {}
        for part, name, level in zip(mine[:fixed], self.names, levels, strict=False):
            if isinstance(part, str):
                if part != level:
                    return None
            elif name is not None:
                captures[name] = level
        if rest and self.names[-1] is not None:
            captures[self.names[-1]] = "/".join(levels[fixed:])
        return captures

    def covers(self, other: Filter) -> bool:
        """Return whether it matches every topic that the other filter matches."""
        for mine, theirs in zip(self.levels, other.levels, strict=False):
            if mine is Star.REST:
                return True
            if theirs is Star.REST or (mine is not Star.LEVEL and mine != theirs):
                return False
        if len(self.levels) > len(other.levels):  # a/# matches a
            return len(self.levels) == len(other.levels) + 1 and self.levels[-1] is Star.REST
        return len(self.levels) == len(other.levels)

    @property
    def topic_parts(self) -> Pattern:
        """One pattern that matches all its topics, and few others."""
        whole = self.patterns[0]
        # ``a/#`` also matches ``a``
        return (*whole[:-2], Star.REST) if len(self.patterns) > 1 and self.names[-1] is None else whole

    def star_of(self, name: str) -> str | Star | None:
        """Return the value of a template's ``{name}``: a fixed level, one level, the rest; None if unknown."""
        if name == "mqtt_topic":
            return Star.REST
        if name in self.names:
            return self.levels[self.names.index(name)]
        found = _LEVEL_NAME.match(name)
        if found is None:
            return None
        number = int(found[1]) - 1
        if number < len(self.levels) and self.levels[number] is not Star.REST:
            return self.levels[number]
        return Star.LEVEL if number == 0 else None  # every topic has a first level


@dataclass(frozen=True, slots=True)
class Template:
    """Text with captures: of a rule's filter, ``{level1}`` and so on, ``{mqtt_topic}``, fields of the message."""

    text: str
    of: Filter
    parts: tuple[tuple[str, str | None], ...]
    """Pairs of a literal and the capture after it, None at the end."""
    fields: tuple[MessageField, ...]
    """The fields that it reads from the message. Without any, the topic alone fills it."""

    @classmethod
    def parse(cls, text: str, of: Filter, *, device: Template | None = None) -> Template:
        """Compile a template for a filter's captures. Raises ValueError with the unknown name.

        ``device`` is the value of ``{device}`` if the filter has no capture of that name.
        """
        try:
            parsed = list(Formatter().parse(text))
        except ValueError as e:
            raise ValueError(f"template {text!r}: {e}") from e
        parts: list[tuple[str, str | None]] = []
        fields: list[MessageField] = []
        for literal, name, spec, conversion in parsed:
            if name in FIELD_KINDS and spec and not conversion:
                field = MessageField.parse(name, spec)
                fields.append(field)
                parts.append((literal, field.name))
                continue
            if spec or conversion:
                raise ValueError(f"template {text!r}: {{{name}}} must not have a format")
            if name == "device" and device is not None and of.star_of(name) is None:
                parts += [(literal, None), *device.parts]
                fields += device.fields
                continue
            if name is not None and of.star_of(name) is None:
                raise ValueError(f"template {text!r}: {_unknown(name, of)}")
            parts.append((literal, name))
        if not parts:
            raise ValueError("a template must not be empty")
        return cls(text, of, tuple(parts), tuple(dict.fromkeys(fields)))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its captures and fields."""
        return tuple(name for _, name in self.parts if name is not None)

    def star_of(self, name: str) -> str | Star:
        """Return the value of one of its names: a fixed level, one level, or any text."""
        found = self.of.star_of(name)
        return Star.REST if found is None else found  # a field of the message

    def fill(self, captures: Mapping[str, str]) -> str:
        """Return the text with the captures as they are."""
        return "".join(f"{literal}{captures[name]}" if name is not None else literal for literal, name in self.parts)

    def fill_encoded(self, captures: Mapping[str, str]) -> str:
        """Return the text as the local name of a Pulsar topic."""
        filled = "".join(
            f"{literal}{encode_piece(captures[name])}" if name is not None else literal for literal, name in self.parts
        )
        return encode_local(filled)

    def pattern(self, *, encoded: bool = False, field: Star = Star.REST) -> Pattern:
        """Return the strings that it can make. With ``encoded``, before ``encode_local``, which is injective.

        ``field`` is the star for a field of the message, if not any text is valid.
        """
        found: list[str | Star] = []
        fields = {f.name for f in self.fields}
        for literal, name in self.parts:
            if literal:
                found.append(literal)
            if name is None:
                continue
            if name == "mqtt_topic" and not encoded:
                found.extend(self.of.topic_parts)
                continue
            star = field if name in fields else self.star_of(name)
            if isinstance(star, str):
                found.append(encode_piece(star) if encoded else star)
            else:
                found.append(Star.LEVEL if encoded else star)
        return tuple(found)

    def local_problem(self) -> str | None:
        """Return why it cannot name a Pulsar topic, None if it can."""
        if self.fields:
            return f"template {self.text!r}: {{{self.fields[0].name}}} may name a device or a key, not a Pulsar topic"
        for literal, _ in self.parts:
            if not _LOCAL_LITERAL.match(literal):
                return f"template {self.text!r}: a Pulsar topic has only letters, digits and _.- in its fixed parts"
        if not self.names and self.text.strip(".") == "":
            return f"template {self.text!r}: a name must not have dots only"
        return None

    def ambiguity(self) -> str | None:
        """Return why two different sets of captures could make the same text, or None.

        A slash separates two levels, because a level does not contain one. Nothing separates a rest or a field from the
        next capture.
        """
        named = [(name, number) for number, (_, name) in enumerate(self.parts) if name is not None]
        for (before, at), (after, to) in pairwise(named):
            literal = "".join(literal for literal, _ in self.parts[at + 1 : to + 1])
            star = self.star_of(before)
            if isinstance(star, Star) and (star is Star.REST or "/" not in literal):
                return (
                    f"template {self.text!r}: the border between {{{before}}} and {{{after}}} is ambiguous, so two "
                    "devices could become one: put a slash between them, and the rest last"
                )
        return None


def _unknown(name: str, of: Filter) -> str:
    known = [n for n in of.names if n] + ["level1", "mqtt_topic", "user:NAME", "json:$.PATH"]
    return f"{{{name}}} is not in every topic that {of.mqtt!r} matches; known: {', '.join(known)}"
