"""The topics that a query reads: full names, or a pattern that names must match.

``sources.snapshot`` requests the existing topics.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bridge.contract import full_name, topic_name

__all__ = ["TopicsPattern", "asked_topics"]

_DOMAIN = "persistent://"


@dataclass(frozen=True)
class TopicsPattern:
    """Topics of one namespace whose last part matches a whole regular expression."""

    tenant: str
    namespace: str
    expression: str

    @property
    def folder(self) -> str:
        """The namespace in the admin's form: ``tenant/namespace``."""
        return f"{self.tenant}/{self.namespace}"

    def matching(self, topics: Iterable[str]) -> tuple[str, ...]:
        """Return the matching ones of these full names, sorted, without Pulsar's own topics (``__…``)."""
        prefix = topic_name(self.tenant, self.namespace, "")
        found = []
        for topic in topics:
            local = topic.removeprefix(prefix)
            if topic.startswith(prefix) and not local.startswith("__") and re.fullmatch(self.expression, local):
                found.append(topic)
        return tuple(sorted(found))


def asked_topics(options: Mapping[str, str], problems: list[str]) -> tuple[tuple[str, ...], TopicsPattern | None]:
    """Return the topics in ``topic`` or ``topics``, or the pattern. Option names are in lower case."""
    given = [name for name in ("topic", "topics", "topicspattern") if name in options]
    if len(given) != 1:
        problems.append("give exactly one of topic, topics and topicsPattern")
        return (), None
    text = options[given[0]]
    if given[0] == "topicspattern":
        return (), _pattern(text.strip(), problems)
    if given[0] == "topic" and "," in text:
        problems.append(f"topic={text!r}: give several topics with topics")
    found = []
    for name in text.split(","):
        if not name.strip():
            continue
        try:
            found.append(full_name(name.strip()))
        except ValueError as e:
            problems.append(str(e))
    if not found and not problems:
        problems.append(f"{given[0]} names no topic")
    return tuple(dict.fromkeys(found)), None


def _pattern(text: str, problems: list[str]) -> TopicsPattern | None:
    rest = text.removeprefix(_DOMAIN)
    # The first two slashes delimit tenant and namespace; a slash within the expression would match no name.
    parts = rest.split("/", 2)
    if len(parts) == 1:
        parts = ["public", "default", rest]
    try:
        if len(parts) != 3 or not all(parts) or "://" in rest:
            raise ValueError("give tenant/namespace/ and a regular expression, or one for names in public/default")
        for name in parts[:2]:
            if not re.fullmatch(r"[-=:.\w]+", name, re.ASCII):
                raise ValueError(f"{name!r} is not a valid name; only the last part is a regular expression")
        re.compile(parts[2])
    except (ValueError, re.error) as e:
        problems.append(f"topicsPattern={text!r}: {e}")
        return None
    return TopicsPattern(*parts)
