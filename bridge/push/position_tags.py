"""Positions of commands as devices see them: with a tag that proves who received the command (H36).

A position alone can be guessed, and all devices of a partition answer on one topic. So each position that leaves for a
device ends with a tag, ``0.3.7.1.-1.<tag>``: a keyed hash of the position and the device. The key is the partition's secret,
which is stored in its cursors topic, so a later owner accepts the tags of a former one. Answers and resume requests carry
the tag; a client that did not receive the command, or sends for another device, cannot make it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from typing import Final, NamedTuple

from bridge.contract.commands import CommandPosition
from bridge.errors import ContractError

__all__ = ["GENERATION", "SECRET_BYTES", "PositionTags", "TaggedPosition", "new_secret", "read_position"]

GENERATION: Final = 0
SECRET_BYTES: Final = 32
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
    """Makes and verifies the tags of one partition."""

    def __init__(self, secret: bytes, partition: int) -> None:
        self._key = hmac.new(secret, digestmod=hashlib.sha256)
        self._partition = partition

    def tagged(self, position: CommandPosition, device: str) -> str:
        """Return the opaque position that ``device`` gets with the command at ``position``."""
        return f"{position.encode(self._partition, GENERATION)}.{self._tag(position, device)}"

    def proves(self, tag: str, position: CommandPosition, device: str) -> bool:
        """Return whether the sender of ``tag`` received the command at ``position`` as ``device``."""
        return hmac.compare_digest(tag.encode(), self._tag(position, device).encode())

    def _tag(self, position: CommandPosition, device: str) -> str:
        key = self._key.copy()
        key.update(f"{position.encode(self._partition, GENERATION)}\0{device}".encode(errors="surrogatepass"))
        return base64.urlsafe_b64encode(key.digest()[:_TAG_BYTES]).decode("ascii")
