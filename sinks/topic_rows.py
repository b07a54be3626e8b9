"""Converts rows with the source's column names to Pulsar messages, or to bad rows.

Bytes of payload and key stay unchanged.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bridge.contract import P_DEVICE, SOURCE_COLUMNS, base_topic, full_name
from bridge.contract.commands import MAX_COMMAND_BYTES, Problem
from bridge.contract.names import DEFAULT_MAX_NAME_BYTES, name_problem
from bridge.errors import ContractError
from sinks.arrow_rows import is_time, readable, rows_of
from sinks.columns import TOPIC_SINK_COLUMNS
from sinks.messages import BadRow, PulsarMessage, check_columns

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Plan", "check_schema", "read_rows"]

_NOT_WRITTEN: Final = {name: (kind,) for name, kind in SOURCE_COLUMNS if name not in TOPIC_SINK_COLUMNS}
_POSITION_COLUMNS: Final = (
    "__messageId", "__publishTime", "partition", "ledger_id", "entry_id", "batch_index",
)  # fmt: skip
"""Columns of the source with a row's position. The other columns that are not written come from its properties."""


@dataclass(frozen=True)
class Plan:
    """Options that are the same for all rows of a write."""

    topic: str | None
    """Full name; None if the column ``__topic`` names each row's."""
    base64_keys: bool
    """Whether binary keys are stored as base64, as Java's clients store them."""
    chunking: bool
    """Whether payloads may exceed the size of a Pulsar message."""
    forbidden: str
    """Prefix of topic names that no row may name: the system namespace."""
    max_name_bytes: int = DEFAULT_MAX_NAME_BYTES
    """Longest key, as stored."""


def check_schema(columns: Iterable[tuple[str, str]], plan: Plan) -> None:
    """Check a DataFrame's columns (name, Spark SQL type) against those that the sink writes.

    Raises ContractError that lists every problem with its remedy.
    """
    columns = list(columns)
    found = dict(columns)
    required = ["payload" if "payload" in found else "value"]
    if plan.topic is None:
        required.append("__topic")
    check_columns(
        "pulsebridge",
        columns,
        TOPIC_SINK_COLUMNS,
        required,
        _NOT_WRITTEN,
        strangers="drop it, or put it into value (to_json(struct(…))) or __messageProperties",
    )
    view = [name for name in found if name in _NOT_WRITTEN and name not in _POSITION_COLUMNS]
    if view and "__messageProperties" not in found:
        raise ContractError(
            f"pulsebridge: the columns {', '.join(view)} repeat __messageProperties, which is missing",
            remedy="add __messageProperties, or drop them",
        )
    if plan.base64_keys and found.get("__key", "binary") != "binary":
        raise ContractError("pulsebridge: keyEncoding=base64 needs __key as binary", remedy="cast it to binary")


def read_rows(batches: Iterable[pa.RecordBatch], plan: Plan) -> Iterator[PulsarMessage | BadRow]:
    """Yield each row of a task in order, as a message or a bad row."""
    columns = [name for name in TOPIC_SINK_COLUMNS if not (name == "__topic" and plan.topic is not None)]
    number = 0
    for batch in batches:
        to_ms = 1000 if is_time(batch, "__eventTime") else 1
        for at, row, problem in rows_of((batch,), columns, first=number):
            yield _read_row(at, row, plan, to_ms) if problem is None else _unread(at, row, plan, problem)
        number += batch.num_rows


def _unread(number: int, row: Mapping[str, Any], plan: Plan, problem: Problem) -> BadRow:
    """Return a row with invalid UTF-8 as a bad row, with all readable values."""
    kept = {name: value for name, value in _properties(row).items() if value is not None}
    key = _key(row.get("__key"), plan)[0] or readable(row.get("__key")) or None
    payload = _bytes(row["value"] if "value" in row else row["payload"])
    named = row.get("__topic")
    topic = _topic(named, plan)[0] if isinstance(named, str) else plan.topic or ""
    return BadRow(number, problem, payload or b"", kept.get(P_DEVICE) or key or "", topic, key, kept)


def _properties(row: Mapping[str, Any]) -> dict[str, Any]:
    return dict(row.get("__messageProperties") or ())


def _read_row(number: int, row: Mapping[str, Any], plan: Plan, to_ms: int) -> PulsarMessage | BadRow:
    payload = _bytes(row["value"] if "value" in row else row["payload"])
    properties = _properties(row)
    key, problem = _key(row.get("__key"), plan)
    topic = plan.topic or ""
    if plan.topic is None:
        topic, wrong = _topic(row["__topic"], plan)
        problem = wrong or problem
    event_ms, wrong = _event_ms(row.get("__eventTime"), to_ms)
    problem = problem or wrong or _key_problem(key, plan)
    problem = problem or _properties_problem(properties) or _difference(row, payload)
    message = PulsarMessage(number, topic, payload, key, properties, event_ms, row.get("__orderingKey"))
    problem = problem or _too_large(message, plan)
    if problem is None:
        return message
    kept = {name: value for name, value in properties.items() if value is not None}
    return BadRow(number, problem, payload or b"", kept.get(P_DEVICE) or key or "", topic, key, kept)


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _topic(name: str | None, plan: Plan) -> tuple[str, Problem | None]:
    if name is None:
        return "", Problem("__topic", "is null; name each row's topic, or set the option topic")
    try:
        topic = base_topic(full_name(name))
    except ValueError as e:
        return "", Problem("__topic", str(e))
    if topic.startswith(plan.forbidden):
        why = f"is {name!r}, a topic of the system namespace; only the option topic may name one"
        return topic, Problem("__topic", why)
    return topic, None


def _key(key: str | bytes | None, plan: Plan) -> tuple[str | None, Problem | None]:
    """Return the key as it is stored: Pulsar's keys are text."""
    if key is None:
        return None, None
    if not len(key):
        return None, Problem("__key", "is empty, which Pulsar does not distinguish from no key; use null for no key")
    if isinstance(key, str):
        return key, None
    if plan.base64_keys:
        return base64.b64encode(key).decode("ascii"), None
    try:
        return key.decode("utf-8"), None
    except UnicodeDecodeError:
        why = f"{key[:40]!r} is not text; set keyEncoding=base64, and read it with the same option"
        return None, Problem("__key", why)


def _key_problem(key: str | None, plan: Plan) -> Problem | None:
    why = None if key is None else name_problem(key, plan.max_name_bytes)
    return None if why is None else Problem("__key", why)


def _event_ms(at: int | None, to_ms: int) -> tuple[int, Problem | None]:
    ms = (at or 0) // to_ms
    if ms < 0:
        return 0, Problem("__eventTime", f"is {ms} ms, before the epoch; use null for none")
    return ms, None


def _properties_problem(properties: Mapping[str, str | None]) -> Problem | None:
    for name, value in properties.items():
        if value is None:
            return Problem("__messageProperties", f"{name!r} is null; leave it out (map_filter)")
    return None


def _difference(row: Mapping[str, Any], payload: bytes | None) -> Problem | None:
    # The source gives both with the same bytes. If a query changed one, the sink must not write the other.
    if "value" in row and "payload" in row and _bytes(row["payload"]) != payload:
        return Problem("payload", "differs from value; drop the column that must not be written")
    return None


def _too_large(message: PulsarMessage, plan: Plan) -> Problem | None:
    other_bytes = len((message.key or "").encode()) + len((message.ordering_key or "").encode())
    other_bytes += sum(len(name.encode()) + len(value.encode()) for name, value in message.properties.items() if value)
    size = other_bytes + (0 if plan.chunking else len(message.payload or b""))
    if size <= MAX_COMMAND_BYTES:
        return None
    field = "__messageProperties" if other_bytes > MAX_COMMAND_BYTES else "value"
    remedy = "" if plan.chunking else "; pulsar.producer.chunkingEnabled=true allows larger payloads"
    return Problem(field, f"makes a message of {size} bytes, the limit is {MAX_COMMAND_BYTES}{remedy}")
