"""What a device asks for when it holds its own offset, and what it is told. Pure.

A request is the position of the last command that the device has had: ``{"from": "0.3.7.1.-1"}``, or the bare text, or
the five topic levels ``0/3/7/1/-1`` as they stand behind a command's topic; ``earliest`` for all that Pulsar still has.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

from bridge.commands import CommandPosition
from bridge.errors import ContractError
from bridge.push.cursor import NOWHERE

__all__ = ["EARLIEST_TEXT", "ResumeAnswer", "ResumeRequest", "read_from", "refusal"]

EARLIEST_TEXT: Final = "earliest"
_GENERATION: Final = 0
_MOST_BYTES: Final = 1024
_FORM: Final = re.compile(r"(\d{1,9})([./])(\d{1,9})\2(\d{1,18})\2(\d{1,18})\2(-1|\d{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True)
class ResumeRequest:
    """A request that names a place. ``after`` is the last command that the device has had."""

    device: str
    text: str
    after: CommandPosition
    at_us: int
    """When the device sent it, in µs since the epoch."""
    token: int
    """By which its shell knows it."""


@dataclass(frozen=True, slots=True)
class ResumeAnswer:
    """What became of a request. ``first`` is where the commands begin that are left, where some are not."""

    commands: int
    trimmed: bool = False
    first: CommandPosition | None = None
    error: str = ""

    def payload(self, text: str, partition: int) -> bytes:
        """Return the JSON object that the device gets; ``text`` is the place that it asked for."""
        if self.error:
            return refusal(self.error, text)
        body: dict[str, object] = {"trimmed": True} if self.trimmed else {"resumed": True}
        if self.trimmed:
            body["first"] = None if self.first is None else self.first.encode(partition, _GENERATION)
        return json.dumps(body | {"from": text, "commands": self.commands}).encode()


def refusal(why: str, text: str) -> bytes:
    """Return what the device gets whose request cannot be served."""
    return json.dumps({"error": why, "from": text}).encode()


def read_from(payload: bytes, partition: int) -> tuple[str, CommandPosition]:
    """Return the text and the place of a request. Raises ContractError with what the device is told."""
    if len(payload) > _MOST_BYTES:
        raise ContractError(f"a request has at most {_MOST_BYTES} bytes")
    text = _text_of(payload)
    if text == EARLIEST_TEXT:
        return text, NOWHERE
    found = _FORM.fullmatch(text)
    if found is None:
        raise ContractError("this is no position: send what came with a command, or earliest")
    generation, _, of, ledger, entry, index = found.groups()
    if int(generation) != _GENERATION:
        raise ContractError(
            f"this position is of generation {generation} of the commands, they are at {_GENERATION}"
        )
    if int(of) != partition:
        raise ContractError(
            f"this position is of partition {int(of)}, the device's commands stand in partition {partition}"
        )
    return text, CommandPosition(int(ledger), int(entry), int(index))


def _text_of(payload: bytes) -> str:
    try:
        text = payload.decode().strip()
    except UnicodeDecodeError:
        raise ContractError("a request is text") from None
    if not text.startswith(("{", '"')):
        return text.strip("/")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        raise ContractError('a request is {"from": "<position>"}') from None
    place = body.get("from") if isinstance(body, dict) else body
    if not isinstance(place, str):
        raise ContractError('a request is {"from": "<position>"}')
    return place.strip().strip("/")
