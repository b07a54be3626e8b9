"""Reads a text from a message: a user property or a path in a JSON payload.

Gateways publish for many devices on one topic, so the topic does not identify the device. This module decides which
texts are valid. A text that is missing, empty or ambiguous is an error with its reason. It is never guessed, because a
wrong guess would put a message into another device's order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["FIELD_KINDS", "MessageField", "MissingField", "read_fields"]

FIELD_KINDS: Final = ("user", "json")
"""``{user:NAME}`` is a user property (MQTT 5), ``{json:$.PATH}`` a path in the payload."""

_STEP: Final = re.compile(
    r"""\.([^.\[\]'"\s]+)  # .name
      | \[(\d{1,9})\]      # [0]
      | \['([^']+)'\]      # ['any name']
      | \["([^"]+)"\]      # ["any name"]
    """,
    re.VERBOSE,
)


class MissingField(Exception):
    """Raised with the reason if a message lacks the text that its rule requires."""


@dataclass(frozen=True, slots=True)
class MessageField:
    """One field of a message in a template."""

    name: str
    """The text between the braces, for example ``json:$.deviceInfo.devEui``."""
    property: str | None
    """Name of the user property, None for a JSON path."""
    steps: tuple[str | int, ...]
    """Names and indexes of the JSON path from the payload's root."""

    @classmethod
    def parse(cls, kind: str, text: str) -> MessageField:
        """Compile a field. Raises ValueError with the problem."""
        name = f"{kind}:{text}"
        if kind == "user":
            if not text:
                raise ValueError(f"{{{name}}} does not name a user property")
            return cls(name, text, ())
        steps: list[str | int] = []
        at = 1
        while text.startswith("$") and at < len(text):
            found = _STEP.match(text, at)
            if found is None:
                break
            member, index, single, double = found.groups()
            steps.append(int(index) if index is not None else member or single or double)
            at = found.end()
        if not steps or at < len(text):
            raise ValueError(f"{{{name}}} is not a JSON path like $.device.id, $['device id'] or $.ids[0]")
        return cls(name, None, tuple(steps))


def read_fields(fields: Sequence[MessageField], payload: bytes, user: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the text of each field by its name. Raises MissingField for the first field without one.

    Only texts and whole numbers (in decimal) are valid.
    """
    found: dict[str, str] = {}
    body: Any = None
    parsed = False
    for field in fields:
        if field.property is not None:
            text = _of_user(field, user)
        else:
            if not parsed:
                body, parsed = _json(payload), True
            text = _of_json(field, body)
        if not text:
            raise MissingField(f"{_named(field)} is empty")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise MissingField(f"{_named(field)} is not Unicode text") from None
        found[field.name] = text
    return found


def _named(field: MessageField) -> str:
    if field.property is not None:
        return f"the user property {field.property!r}"
    return f"the payload's {field.name.removeprefix('json:')}"


def _of_user(field: MessageField, user: Sequence[tuple[str, str]]) -> str:
    values = {value for name, value in user if name == field.property}
    if not values:
        raise MissingField(f"the message has no user property {field.property!r} (they need MQTT 5)")
    if len(values) > 1:
        raise MissingField(f"the user property {field.property!r} has {len(values)} different values")
    return values.pop()


def _json(payload: bytes) -> Any:
    try:
        return json.loads(payload)
    except (ValueError, RecursionError):
        raise MissingField("the payload is not JSON") from None


def _of_json(field: MessageField, body: Any) -> str:
    here: Any = body
    for step in field.steps:
        try:
            here = None if isinstance(here, str) else here[step]
        except (LookupError, TypeError):
            raise MissingField(f"{_named(field)} is missing") from None
    if isinstance(here, int) and not isinstance(here, bool):
        try:
            return str(here)
        except ValueError:  # thousands of digits
            raise MissingField(f"{_named(field)} is too long a number") from None
    if not isinstance(here, str):
        raise MissingField(f"{_named(field)} is neither text nor a whole number")
    return here
