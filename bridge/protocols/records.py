"""The record of a process on the instances topic, with its encoding and decoding.

Each instance has one message, keyed by its name. The last one counts, and an empty one (a tombstone) removes it. The
data that a handler advertises is an opaque text, which only handlers of the same protocol read.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

import psutil

from bridge.contract import INSTANCE_VERSION
from bridge.contract.decoding import LAST_US, checked_fields, checked_text, checked_whole, decodes, json_record

__all__ = ["BEATS", "InstanceRecord", "ProtocolRecord", "bounded_topics"]

BEATS: Final = 4
"""Intervals without a record after which an instance counts as gone."""

_MAX_TOPICS: Final = 200


@dataclass(frozen=True, slots=True)
class ProtocolRecord:
    """One protocol of an instance: opaque data, addresses, and the readiness of its parts."""

    data: str = ""
    listeners: list[str] = field(default_factory=list)
    ready: dict[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InstanceRecord:
    """The state of one process at ``written_ms``. Times are ms since the epoch, by its machine's clock."""

    instance: str
    host: str
    pid: int
    state: Literal["starting", "running", "stopping"]
    started_ms: int
    written_ms: int
    interval_s: float
    """Seconds between its records; see ``BEATS``."""
    protocols: dict[str, ProtocolRecord]
    topics: list[str]
    """Pulsar topics that it has written to, the first 200 by name."""
    topics_count: int

    @classmethod
    def of_this_process(cls, interval_s: float) -> InstanceRecord:
        """Return the first record of this process."""
        host, pid = socket.gethostname(), os.getpid()
        name = f"{host}-{pid}-{secrets.token_hex(3)}"
        return cls(name, host, pid, "starting", time.time_ns() // 1_000_000, 0, interval_s, {}, [], 0)

    def gone(self, now_ms: int) -> bool:
        """Whether its record is so old that it counts as gone, by the reader's clock."""
        return now_ms - self.written_ms > BEATS * self.interval_s * 1000

    def ended(self, now_ms: int) -> bool:
        """Whether its process is gone, by the clock, or by the processes of its host if that is ours."""
        return self.gone(now_ms) or (self.host == socket.gethostname() and not psutil.pid_exists(self.pid))

    def encode(self) -> bytes:
        """Return the record as the JSON payload of its message."""
        return json.dumps({"v": INSTANCE_VERSION} | asdict(self), separators=(",", ":")).encode()

    @classmethod
    @decodes("an instance record")
    def decode(cls, payload: bytes) -> InstanceRecord:
        """Decode a record. Raises ContractError if the payload is not a record of this version."""
        body = json_record(payload, "instance record", [INSTANCE_VERSION])
        for name in ("started_ms", "written_ms"):
            checked_whole(body[name], 0, LAST_US // 1000)
        kinds = {name: kind for name, kind in cls.__annotations__.items() if name not in ("protocols", "topics")}
        return cls(
            **checked_fields(body, kinds | {"state": "str"}),
            protocols={name: _protocol(found) for name, found in body["protocols"].items()},
            topics=_texts(body["topics"]),
        )


def _protocol(body: dict[str, Any]) -> ProtocolRecord:
    ready = {name: value is True for name, value in body.get("ready", {}).items()}
    return ProtocolRecord(checked_text(body.get("data", "")), _texts(body.get("listeners", [])), ready)


def _texts(values: object) -> list[str]:
    if not isinstance(values, list):
        raise ValueError("not a list of texts")
    return [checked_text(value) for value in values]


def bounded_topics(topics: Iterable[str]) -> tuple[list[str], int]:
    """Return the topics for a record, and the number of all."""
    found = sorted(set(topics))
    return found[:_MAX_TOPICS], len(found)
