"""Positions with a tag: what a device gets with a command, sends back with its answer, and resumes from.

A position alone can be guessed, and all devices of a partition share its answer topic. The tag is a keyed hash of position and
device (H36). The key is the partition's secret, which is stored in its cursors topic, so a later owner accepts the tags of a
former one. A client that did not receive the command, or sends for another device, cannot make it.

A resume request is the position of the last command that the device has had, with its tag:
``{"from": "0.3.7.1.-1.<tag>"}``, or the bare text, or the six topic levels. The tag proves that the request comes from this
device. ``earliest``, for all that Pulsar still has, proves nothing: push refuses it without ``push.resume.allow_earliest``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Sequence
from typing import Final, NamedTuple

from bridge.contract.commands import BEFORE_ALL, CommandPosition
from bridge.contract.former_positions import FormerPartition
from bridge.errors import ContractError

__all__ = [
    "MAX_REQUEST_BYTES",
    "SECRET_BYTES",
    "PositionTags",
    "TaggedPosition",
    "new_secret",
    "read_from",
    "read_position",
    "refusal",
]

SECRET_BYTES: Final = 32
MAX_REQUEST_BYTES: Final = 1024
_EARLIEST: Final = "earliest"
_TAG_BYTES: Final = 12
"""96 bits: 16 characters of base64url, which any MQTT topic may contain."""
_FORM: Final = re.compile(
    r"(\d{1,9})([./])(\d{1,9})\2(\d{1,18})\2(\d{1,18})\2(-1|\d{1,9})\2([A-Za-z0-9_-]{16})", re.ASCII
)
_LONGEST: Final = 96
"""No position has more characters."""


class TaggedPosition(NamedTuple):
    """A position as a device sent it back."""

    generation: int
    partition: int
    position: CommandPosition
    tag: str


def new_secret() -> bytes:
    """Return a random secret for a partition without one."""
    return secrets.token_bytes(SECRET_BYTES)


def read_position(text: str) -> TaggedPosition:
    """Read a position with its tag, separated by dots or as topic levels. Raises ContractError for any other text."""
    found = _FORM.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None:
        raise ContractError("this is not a position of a command")
    generation, _, partition, ledger, entry, index, tag = found.groups()
    position = CommandPosition(int(ledger), int(entry), int(index))
    return TaggedPosition(int(generation), int(partition), position, tag)


class PositionTags:
    """Makes and verifies the tags of one partition, in one generation of the commands."""

    def __init__(
        self, secret: bytes, partition: int, generation: int = 0, former: Sequence[FormerPartition] = ()
    ) -> None:
        self._key = hmac.new(secret, digestmod=hashlib.sha256)
        self._partition = partition
        self._former = former
        self.generation = generation

    def tagged(self, position: CommandPosition, device: str) -> str:
        """Return the opaque position that ``device`` gets with the command at ``position``."""
        return f"{position.encode(self._partition, self.generation)}.{self._tag(position, device)}"

    def proves(self, tag: str, position: CommandPosition, device: str) -> bool:
        """Return whether the sender of ``tag`` received the command at ``position`` as ``device``."""
        return hmac.compare_digest(tag.encode(), self._tag(position, device).encode())

    def resumes_after(self, found: TaggedPosition, device: str) -> CommandPosition:
        """Return the position in this partition of what ``device`` received at ``found``, here or in a former partition.

        Raises ContractError if the tag does not prove it.
        """
        where = found.generation, found.partition
        if where == (self.generation, self._partition) and self.proves(found.tag, found.position, device):
            return found.position
        former = [one for one in self._former if where == (one.generation, one.partition)]
        for one in former:
            if PositionTags(one.secret, one.partition, one.generation).proves(found.tag, found.position, device):
                return one.here(found.position)
        if not former and found.generation != self.generation:
            raise ContractError(
                f"this position is of generation {found.generation} of the commands, they are at {self.generation}"
            )
        if not former and found.partition != self._partition:
            raise ContractError(
                f"this position is of partition {found.partition}, the device's commands are in partition {self._partition}"
            )
        raise ContractError("this position did not come with a command to this device")

    def _tag(self, position: CommandPosition, device: str) -> str:
        key = self._key.copy()
        key.update(f"{position.encode(self._partition, self.generation)}\0{device}".encode(errors="surrogatepass"))
        return base64.urlsafe_b64encode(key.digest()[:_TAG_BYTES]).decode("ascii")


# --- resume requests ---


def refusal(why: str, text: str) -> bytes:
    """Return what the device gets whose request cannot be served."""
    return json.dumps({"error": why, "from": text}).encode()


def read_from(payload: bytes, device: str, tags: PositionTags, *, earliest: bool) -> tuple[str, CommandPosition]:
    """Return text and position of a request; ``earliest``: it may ask for all. Raises ContractError with the reason."""
    if len(payload) > MAX_REQUEST_BYTES:
        raise ContractError(f"a request has at most {MAX_REQUEST_BYTES} bytes")
    text = _text_of(payload)
    if text == _EARLIEST:
        if not earliest:
            raise ContractError("earliest is not allowed here: see push.resume.allow_earliest")
        return text, BEFORE_ALL
    return text, tags.resumes_after(read_position(text), device)


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
