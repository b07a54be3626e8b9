"""Resume requests of devices, and their answers.

A request is the position of the last command that the device has had, with its tag: ``{"from": "0.3.7.1.-1.<tag>"}``, or the
bare text, or the six topic levels ``0/3/7/1/-1/<tag>`` as they follow a command's topic. The tag proves that the request
comes from this device (``position_tags``). ``earliest``, for all that Pulsar still has, proves nothing: push refuses it
without ``push.resume.allow_earliest``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from bridge.contract.commands import BEFORE_ALL, CommandPosition
from bridge.errors import ContractError
from bridge.push.position_tags import GENERATION, PositionTags, read_position

__all__ = ["EARLIEST_TEXT", "MAX_REQUEST_BYTES", "ResumeAnswer", "ResumeRequest", "read_from", "refusal"]

EARLIEST_TEXT: Final = "earliest"
MAX_REQUEST_BYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class ResumeRequest:
    """A request that names a position. ``after`` is the last command that the device has had."""

    device: str
    text: str
    after: CommandPosition
    at_us: int
    """When the device sent it, in µs since the epoch."""
    token: int
    """By which the shell identifies it."""


@dataclass(frozen=True, slots=True)
class ResumeAnswer:
    """What became of a request. ``first`` is where the commands begin that are left, where some are not."""

    commands: int
    trimmed: bool = False
    first: CommandPosition | None = None
    error: str = ""

    def payload(self, request: ResumeRequest, tags: PositionTags) -> bytes:
        """Return the JSON object that the device gets."""
        text = request.text
        if self.error:
            return refusal(self.error, text)
        body: dict[str, object] = {"trimmed": True} if self.trimmed else {"resumed": True}
        if self.trimmed:
            body["first"] = None if self.first is None else tags.tagged(self.first, request.device)
        return json.dumps(body | {"from": text, "commands": self.commands}).encode()


def refusal(why: str, text: str) -> bytes:
    """Return what the device gets whose request cannot be served."""
    return json.dumps({"error": why, "from": text}).encode()


def read_from(
    payload: bytes, device: str, partition: int, tags: PositionTags, *, earliest: bool
) -> tuple[str, CommandPosition]:
    """Return the text and the position of a request of ``device``; ``earliest`` says whether it may ask for everything.

    Raises ContractError with the reason for the device.
    """
    if len(payload) > MAX_REQUEST_BYTES:
        raise ContractError(f"a request has at most {MAX_REQUEST_BYTES} bytes")
    text = _text_of(payload)
    if text == EARLIEST_TEXT:
        if not earliest:
            raise ContractError("earliest is not allowed here: see push.resume.allow_earliest")
        return text, BEFORE_ALL
    found = read_position(text)
    if found.generation != GENERATION:
        raise ContractError(
            f"this position is of generation {found.generation} of the commands, they are at {GENERATION}"
        )
    if found.partition != partition:
        raise ContractError(
            f"this position is of partition {found.partition}, the device's commands are in partition {partition}"
        )
    if not tags.proves(found.tag, found.position, device):
        raise ContractError("this position did not come with a command to this device")
    return text, found.position


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
    position = body.get("from") if isinstance(body, dict) else body
    if not isinstance(position, str):
        raise ContractError('a request is {"from": "<position>"}')
    return position.strip().strip("/")
