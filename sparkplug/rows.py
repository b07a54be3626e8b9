"""The rows of an edge node's messages: one for each metric, or one for each event of its sessions.

A node's messages come in the order of the log. Its state and births pass from one call to the next.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from sparkplug.nodes import ALIAS, Arrival, Births, NodeState, Verdict, step
from sparkplug.payloads import BD_SEQ, MAX_ELEMENTS, PayloadError, Topic, parse_topic, read_payload
from sparkplug.values import NAMES, Budget, Value, checked_ms, json_text, properties_of, value_of

__all__ = ["EVENT_ROW", "METRIC_ROW", "Message", "event_rows", "metric_rows", "node_of"]

_MESSAGE: Final = (
    ("device", "string"), ("group_id", "string"), ("edge_node_id", "string"), ("device_id", "string"),
    ("message_type", "string"), ("seq", "bigint"), ("bd_seq", "bigint"), ("mark", "string"), ("sent_ms", "bigint"),
    ("arrival_us", "bigint"), ("mqtt_topic", "string"), ("topic", "string"), ("partition", "int"), ("ledger", "bigint"),
    ("entry", "bigint"), ("index", "int"), ("element", "int"), ("_payload", "binary"), ("_fault", "string"),
)  # fmt: skip
METRIC_ROW: Final = (
    *_MESSAGE,
    ("metric", "string"), ("datatype", "string"), ("alias", "decimal(20,0)"), ("metric_ms", "bigint"),
    ("is_null", "boolean"), ("is_historical", "boolean"), ("is_transient", "boolean"), ("properties", "string"),
    ("metadata", "string"),
    ("value", "double"), ("integer", "bigint"), ("truth", "boolean"), ("text", "string"), ("time_ms", "bigint"),
    ("bytes", "binary"), ("json", "string"),
)  # fmt: skip
"""Columns of a row of ``metric_rows``, with SQL types."""
EVENT_ROW: Final = (*_MESSAGE, ("event", "string"), ("event_device", "string"), ("detail", "string"))
"""Columns of a row of ``event_rows``."""
_NO_METRIC: Final = (None,) * (len(METRIC_ROW) - len(_MESSAGE))
_BIGINT: Final = 1 << 63
_NULL: Final = Value()


class Message(NamedTuple):
    """A message of an edge node, with its position in Pulsar. Ordered by that position within a node."""

    ledger: int
    entry: int
    batch_index: int
    topic: str
    partition: int
    mqtt_topic: str
    payload: bytes
    arrival_us: int


class _Read(NamedTuple):
    """A message with what it says: ``payload`` is None, with a fault, if it is not a Sparkplug payload."""

    message: Message
    topic: Topic
    payload: Any
    fault: str | None
    verdict: Verdict
    seq: int | None = None
    bd_seq: int | None = None

    def row(self, element: int, mark: str | None, payload: bytes | None, fault: str | None) -> tuple[Any, ...]:
        """Return the columns of the message."""
        message, topic = self.message, self.topic
        sent_ms = None if self.payload is None or not self.payload.HasField("timestamp") else self.payload.timestamp
        return (
            f"{topic.group}/{topic.node}", topic.group, topic.node, topic.device, topic.kind, self.seq, self.bd_seq, mark,
            sent_ms, message.arrival_us, message.mqtt_topic, message.topic, message.partition, message.ledger,
            message.entry, message.batch_index, element, payload, fault,
        )  # fmt: skip


def node_of(mqtt_topic: str) -> str | None:
    """Return ``group/node`` of an edge node's topic, None for any other topic."""
    topic = parse_topic(mqtt_topic)
    return None if topic is None else f"{topic.group}/{topic.node}"


def metric_rows(
    state: NodeState, births: Births, messages: Iterable[Message], rebirth_us: int
) -> Iterator[tuple[Any, ...]]:
    """Yield a row for each metric of a node's messages, in order. Changes ``state`` and ``births``.

    A payload, or a metric, that cannot be decoded gives a row with ``_fault`` and ``_payload``, the bytes of either.
    """
    for one in _read(state, messages, rebirth_us):
        if one.fault is not None:
            yield one.row(0, None, one.message.payload, one.fault) + _NO_METRIC
            continue
        if one.verdict.clears:
            births.clear()
        if one.verdict.learns and one.topic.kind in ("NBIRTH", "DBIRTH"):
            births.learn(one.topic.device, _definitions(one.payload))
        budget = Budget(MAX_ELEMENTS)
        for element, metric in enumerate(one.payload.metrics):
            try:
                found, known = _metric(one.topic, metric, births, budget)
            except ValueError as e:
                raw = metric.SerializeToString()
                yield one.row(element, one.verdict.mark, raw, f"sparkplug: {e}"[:300]) + _NO_METRIC
            else:
                yield one.row(element, one.verdict.mark or (None if known else ALIAS), None, None) + found


def event_rows(state: NodeState, messages: Iterable[Message], rebirth_us: int) -> Iterator[tuple[Any, ...]]:
    """Yield a row for each event of a node's sessions, in order. Changes ``state``. Faults are in ``metric_rows``."""
    for one in _read(state, messages, rebirth_us):
        for element, (event, device, detail) in enumerate(one.verdict.events):
            yield (*one.row(element, one.verdict.mark, None, None), event, device, detail)


def _read(state: NodeState, messages: Iterable[Message], rebirth_us: int) -> Iterator[_Read]:
    for message in messages:
        topic = parse_topic(message.mqtt_topic)
        if topic is None:
            continue
        try:
            payload = read_payload(message.payload)
            checked_ms(payload.timestamp)
            seq = _bounded(payload.seq, "seq") if payload.HasField("seq") else None
            bd_seq = _bd_seq(payload) if topic.device is None and topic.kind != "NDATA" else None
        except ValueError as e:
            fault = str(e) if isinstance(e, PayloadError) else f"sparkplug: {e}"
            yield _Read(message, topic, None, fault, Verdict(None))
            continue
        arrival = Arrival(topic.kind, topic.device, seq, bd_seq, zlib.crc32(message.payload) or 1, message.arrival_us)
        yield _Read(message, topic, payload, None, step(state, arrival, rebirth_us), seq, bd_seq)


def _bounded(number: int, name: str) -> int:
    if number >= _BIGINT:
        raise ValueError(f"{name} {number} is beyond 63 bits")
    return number


def _bd_seq(payload: Any) -> int | None:
    for metric in payload.metrics:
        if metric.name == BD_SEQ and metric.WhichOneof("value") in ("int_value", "long_value"):
            return _bounded(getattr(metric, metric.WhichOneof("value")), BD_SEQ)
    return None


def _definitions(payload: Any) -> Iterator[tuple[str, int | None, int]]:
    for metric in payload.metrics:
        if metric.HasField("name"):
            yield metric.name, metric.alias if metric.HasField("alias") else None, metric.datatype


def _metric(topic: Topic, metric: Any, births: Births, budget: Budget) -> tuple[tuple[Any, ...], bool]:
    """Return the columns of a metric, and whether its name is known. Raises ValueError if it cannot be decoded."""
    alias = metric.alias if metric.HasField("alias") else None
    name, datatype = births.find(topic.device, metric.name if metric.HasField("name") else None, alias)
    datatype = metric.datatype or datatype
    value = value_of(metric, datatype, budget)
    fields = metric.metadata.ListFields() if metric.HasField("metadata") else None
    return (
        name,
        NAMES.get(datatype, str(datatype)) if datatype else None,
        alias,
        checked_ms(metric.timestamp) if metric.HasField("timestamp") else None,
        metric.is_null or value == _NULL,
        metric.is_historical,
        metric.is_transient,
        json_text(properties_of(metric.properties)) if metric.HasField("properties") else None,
        None if fields is None else json_text({field.name: one for field, one in fields}),
        *value,
    ), name is not None  # fmt: skip
