"""Commands of ``pulsebridge commands send``, from its options or from lines of JSON. Each error names field and line."""

from __future__ import annotations

import base64
import json
import os
import select
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bridge.contract.commands import Command, Problem, command_problem
from bridge.contract.groups import DEVICE_MARK, GroupCommand, group_problem
from bridge.errors import ConfigError
from bridge.settings.units import Duration

__all__ = ["FIELDS", "CommandSource"]

FIELDS: Final[Mapping[str, type]] = {
    "command_id": str,
    "device": str,
    "group": str,
    "mqtt_topic": str,
    "payload": str,
    "payload_base64": str,
    "qos": int,
    "retain": bool,
    "broadcast": bool,
    "expires_in": str,
    "cause": str,
    "link": str,
}
"""Fields of a line, named as the columns of the sink, with their types."""
_KINDS: Final = {str: "text", int: "a whole number", bool: "true or false"}
_CHUNK_BYTES: Final = 1 << 20
_SHOWN: Final = 80


class _Invalid(Exception):
    def __init__(self, problem: Problem) -> None:
        self.problem = problem


@dataclass(frozen=True)
class CommandSource:
    """Makes commands. ``defaults`` are values of all fields that a line lacks; ``payload`` may be bytes there."""

    defaults: Mapping[str, Any]
    prefix: str
    """A line without an id gets the id ``PREFIX-LINE``."""
    max_name_bytes: int

    def single(self) -> Command | GroupCommand:
        """Return the command of the options. Raises ConfigError."""
        try:
            return self._command({"command_id": self.prefix, **self.defaults})
        except _Invalid as e:
            option = {"command_id": "id", "mqtt_topic": "topic"}.get(e.problem.field, e.problem.field)
            raise ConfigError(f"--{option.replace('_', '-')}: {e.problem.why}") from e

    def named(self, fields: Mapping[str, Any]) -> Command | GroupCommand:
        """Return the command of these fields, as of a line. Raises ConfigError."""
        try:
            return self._command({"command_id": self.prefix, **self.defaults} | _checked(fields))
        except _Invalid as e:
            raise ConfigError(str(e.problem)) from e

    def file(self, path: Path) -> Iterator[Command | GroupCommand | None]:
        """Yield the commands of a file, ``-`` for stdin, as ``lines``. A file, but not a pipe, is checked as a whole before."""
        if str(path) == "-":
            return self.lines(sys.stdin.fileno(), "stdin")
        if path.is_file():
            deque(self._opened(path), maxlen=0)
        return self._opened(path)

    def _opened(self, path: Path) -> Iterator[Command | GroupCommand | None]:
        try:
            with path.open("rb", buffering=0) as file:
                yield from self.lines(file.fileno(), str(path))
        except OSError as e:
            raise ConfigError(
                f"--lines {path}: {e.strerror}", remedy="give a file with a JSON object in each line"
            ) from e

    def lines(self, fd: int, name: str) -> Iterator[Command | GroupCommand | None]:
        """Yield the command of each line of an open file; None if the next line has not arrived yet.

        Raises ConfigError for the first invalid line.
        """
        for number, line in _lines(fd):
            try:
                unnamed = {"command_id": f"{self.prefix}-{number}", **self.defaults}
                yield None if line is None else self._command(unnamed | _fields(line))
            except _Invalid as e:
                raise ConfigError(f"line {number} of {name}: {e.problem}") from e

    def _command(self, fields: Mapping[str, Any]) -> Command | GroupCommand:
        now_us = time.time_ns() // 1000
        common = {name: fields[name] for name in ("command_id", "qos", "retain", "cause") if name in fields}
        common |= {"payload": _payload(fields), "emitted_at_us": now_us}
        if "expires_in" in fields:
            common["expires_at_ms"] = _expiry_ms(fields["expires_in"], now_us // 1000)
        device, group, topic, link = (fields.get(name, "") for name in ("device", "group", "mqtt_topic", "link"))
        broadcast = fields.get("broadcast", False)
        if bool(device) == bool(group):
            raise _Invalid(Problem("device", f"is {device!r} and group is {group!r}: give one of them"))
        if group and link:
            raise _Invalid(Problem("link", f"is {link!r}; only a command for one device may name a link"))
        if device and broadcast:
            raise _Invalid(Problem("broadcast", "is true, and only a command to a group is broadcast"))
        made: Command | GroupCommand
        if group:
            made = GroupCommand(group=group, mqtt_topic=topic, broadcast=broadcast, **common)
            problem = group_problem(made, self.max_name_bytes)
        else:
            made = Command(device=device, mqtt_topic=topic.replace(DEVICE_MARK, device), link=link, **common)
            problem = command_problem(made, self.max_name_bytes)
        if problem is not None:
            raise _Invalid(problem)
        return made


def _fields(line: bytes) -> dict[str, Any]:
    """Return the fields of a line; null is a missing value."""
    try:
        found = json.loads(line.decode("utf-8-sig"))
        json.dumps(found, ensure_ascii=False).encode()  # half of a surrogate pair is not valid
    except (ValueError, RecursionError) as e:
        raise _Invalid(Problem("JSON", f"is not valid: {e}")) from e
    if not isinstance(found, dict):
        raise _Invalid(Problem("JSON", "is not an object: write one object in each line"))
    return _checked(found)


def _checked(found: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in found.items():
        kind = FIELDS.get(name)
        if kind is None:
            raise _Invalid(Problem(name[:_SHOWN], f"is not a field of a command; known are {', '.join(FIELDS)}"))
        if value is not None and type(value) is not kind:
            also = "; write JSON as a string (jq: tojson)" if name == "payload" else ""
            raise _Invalid(Problem(name, f"is {json.dumps(value, default=repr)[:_SHOWN]}, wanted {_KINDS[kind]}{also}"))
    given = {name: value for name, value in found.items() if value is not None}
    if {"payload", "payload_base64"} <= given.keys():
        raise _Invalid(Problem("payload", "is given twice, also as payload_base64: remove one of them"))
    return given


def _payload(fields: Mapping[str, Any]) -> bytes:
    text, encoded = fields.get("payload"), fields.get("payload_base64")
    if text is None and encoded is None:
        raise _Invalid(Problem("payload", "is missing; an empty one is allowed"))
    try:
        if encoded is not None:
            return base64.b64decode(encoded, validate=True)
        return text if isinstance(text, bytes) else str(text).encode()
    except ValueError as e:
        raise _Invalid(Problem("payload" if encoded is None else "payload_base64", f"is not valid: {e}")) from e


def _expiry_ms(text: str, now_ms: int) -> int:
    try:
        left_ms = int(Duration(text) * 1000)
    except (ValueError, OverflowError) as e:
        raise _Invalid(Problem("expires_in", f"is {text[:_SHOWN]!r}: {e}")) from e
    if left_ms <= 0:
        raise _Invalid(Problem("expires_in", f"is {text!r}; leave it out for a command that does not expire"))
    return now_ms + left_ms


def _lines(fd: int) -> Iterator[tuple[int, bytes | None]]:
    """Yield number and content of each line that is not blank; None if the next one has not arrived yet."""
    number, rest = 0, b""
    while True:
        if not select.select([fd], [], [], 0)[0]:
            yield number, None
        chunk = os.read(fd, _CHUNK_BYTES)
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole if chunk else [rest]:
            number += 1
            if line.strip():
                yield number, line
        if not chunk:
            return
