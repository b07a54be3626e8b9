"""What a process that runs protocol handlers tells of itself on the instances topic. Pure: it encodes and decodes.

One message for each instance, keyed by its name, the last one counts; an empty one (a tombstone) removes it. What a
handler advertises is an opaque text: only its own kind reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from bridge.contract import INSTANCE_VERSION
from bridge.errors import ContractError

__all__ = ["BEATS", "InstanceRecord", "ProtocolRecord", "bounded_topics"]

BEATS: Final = 4
"""After so many times its interval without a sign of life an instance counts as gone."""

_MAX_TOPICS: Final = 200


@dataclass(frozen=True, slots=True)
class ProtocolRecord:
    """One protocol of an instance: its opaque data, where it listens, and which of its parts are ready."""

    data: str = ""
    listeners: list[str] = field(default_factory=list)
    ready: dict[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InstanceRecord:
    """One process, as it was at ``written_ms``. Times are ms since the epoch, by the clock of its machine."""

    instance: str
    host: str
    pid: int
    state: Literal["starting", "running", "stopping"]
    started_ms: int
    written_ms: int
    interval_s: float
    """How often it writes; see ``BEATS``."""
    protocols: dict[str, ProtocolRecord]
    topics: list[str]
    """Pulsar topics that it has written to, the first 200 by name."""
    topics_count: int

    def gone(self, now_ms: int) -> bool:
        """Whether it has been silent for so long that it counts as gone, by the reader's clock."""
        return now_ms - self.written_ms > BEATS * self.interval_s * 1000

    def encode(self) -> bytes:
        """Return the record as the JSON payload of its message."""
        return json.dumps({"v": INSTANCE_VERSION} | asdict(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, payload: bytes) -> InstanceRecord:
        """Read a record back. Raises ContractError when the payload is not one of this version."""
        try:
            body: dict[str, Any] = json.loads(payload)
            version = body.pop("v")
            if version != INSTANCE_VERSION:
                raise ContractError(
                    f"instance record has version {version!r}, this reads {INSTANCE_VERSION!r}"
                )
            body["protocols"] = {str(n): ProtocolRecord(**p) for n, p in body["protocols"].items()}
            made = cls(**body)
            made.gone(int(made.written_ms))  # numbers are numbers
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise ContractError(f"not an instance record: {payload[:80]!r}") from e
        return made


def bounded_topics(topics: Iterable[str]) -> tuple[list[str], int]:
    """Return the topics that a record names, and how many there are."""
    found = sorted(set(topics))
    return found[:_MAX_TOPICS], len(found)
