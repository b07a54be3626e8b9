"""Reads and writes Sparkplug topics and payloads. No byte sequence raises anything but ``PayloadError``."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from sources.payloads.limits import check_protobuf, check_size
from sparkplug import NAMESPACE
from sparkplug.schema import FIELDS, DecodeError, Payload
from sparkplug.values import set_value

__all__ = [
    "BD_SEQ", "MAX_ELEMENTS", "REBIRTH", "PayloadError", "Topic", "command", "parse_topic", "read_payload",
]  # fmt: skip

BD_SEQ: Final = "bdSeq"
"""The metric that joins an NDEATH to its NBIRTH."""
REBIRTH: Final = "Node Control/Rebirth"
"""The metric of an NCMD that requests new births."""
MAX_BYTES: Final = 1024 * 1024
MAX_VALUES: Final = 1_000_000
"""Values of a payload, and possible fields of its messages: 40,000 metrics, or fewer with properties."""
MAX_ELEMENTS: Final = 1_000_000
"""Elements of all arrays of a payload."""
MAX_DEPTH: Final = 32
_TOPIC: Final = re.compile(
    NAMESPACE.replace(".", r"\.") + r"/([^/]+)/(?:(NBIRTH|NDATA|NDEATH)/([^/]+)|(DBIRTH|DDATA|DDEATH)/([^/]+)/([^/]+))",
    re.S,
)


class PayloadError(ValueError):
    """Raised for bytes that are not a Sparkplug payload within the limits."""


class Topic(NamedTuple):
    """The topic of an edge node's message."""

    group: str
    kind: str
    """NBIRTH, NDATA, NDEATH, DBIRTH, DDATA or DDEATH."""
    node: str
    device: str | None
    """The device id; None for the edge node itself."""


def parse_topic(topic: str) -> Topic | None:
    """Return the parts of an edge node's topic, None for any other topic."""
    found = _TOPIC.fullmatch(topic)
    if found is None:
        return None
    group, kind, node, device_kind, device_node, device = found.groups()
    return Topic(group, kind or device_kind, node or device_node, device)


def read_payload(payload: bytes) -> Any:
    """Return the protobuf message of a payload. Raises PayloadError."""
    try:
        check_size(len(payload), MAX_BYTES)
        check_protobuf(payload, FIELDS, max_depth=MAX_DEPTH, max_values=MAX_VALUES)
        return Payload.FromString(payload)
    except (ValueError, DecodeError) as e:
        raise PayloadError(f"sparkplug: {e}"[:300]) from None


def command(now_ms: int, name: str, value: str | None, datatype: int, alias: int | None = None) -> bytes:
    """Return the payload of an NCMD or DCMD that writes one metric, named by its alias if it has one.

    It has a timestamp, and no sequence number (tck-id-payloads-ncmd-seq). It has the data type, although the
    specification advises against it, because common libraries cannot read a value without one. Raises ValueError for a
    value that does not fit the data type.
    """
    made = Payload(timestamp=now_ms)
    metric = made.metrics.add(timestamp=now_ms, datatype=datatype)
    if alias is None or name == REBIRTH:
        metric.name = name
    else:
        metric.alias = alias
    set_value(metric, datatype, value)
    return bytes(made.SerializeToString())
