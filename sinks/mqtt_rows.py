"""Converts rows of a DataFrame to publishes for an MQTT broker, or to bad rows.

Section numbers are those of MQTT 5.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bridge.contract import ORIGIN_PROPERTY, ORIGIN_SINK
from bridge.contract.commands import Problem, publish_topic_problem, text_problem
from bridge.errors import ContractError
from bridge.mqtt.packets import misfit, publish_size
from bridge.mqtt.types import Connected, PublishProperties
from sinks.arrow_rows import readable, rows_of
from sinks.columns import MQTT_SINK_COLUMNS
from sinks.messages import BadRow, check_columns

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Plan", "Publish", "check_schema", "letter_of", "letter_room", "read_rows"]

_OF_MQTT_5: Final = tuple(MQTT_SINK_COLUMNS)[4:]
_MAX_TEXT_BYTES: Final = 65_535  # 1.5.4 and 1.5.6: the length of text and of binary data has two bytes
_MAX_PACKET_BYTES: Final = 268_435_455  # 1.5.5
_MAX_EXPIRY_S: Final = 0xFFFF_FFFF
_ORIGIN: Final = (ORIGIN_PROPERTY, ORIGIN_SINK)
_SHOWN: Final = 200


@dataclass(frozen=True)
class Plan:
    """Options that are the same for all rows of a write."""

    topic: str | None
    """For rows without one."""
    mqtt_5: bool
    allow_loopback: bool


@dataclass(frozen=True, slots=True)
class Publish:
    """One publish; ``row`` is its number within the task."""

    row: int
    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: PublishProperties | None

    def refused(self, problem: Problem) -> BadRow:
        """Return this publish as a bad row, for a reason that only the broker reports."""
        return BadRow(self.row, problem, self.payload, "", self.topic)

    def misfit(self, broker: Connected) -> BadRow | None:
        """Return this publish as a bad row if it exceeds the broker's limits, else None."""
        size = len(self.payload) - (0 if self.qos else 2)  # QoS 0 lacks the two bytes of a packet identifier
        properties = self.properties or PublishProperties()
        why = misfit(broker, self.topic, size, self.qos, retain=self.retain, properties=properties)
        if why is None:
            return None
        of_qos, of_retain = self.qos > broker.maximum_qos, self.retain and not broker.retain_available
        return self.refused(Problem("qos" if of_qos else "retain" if of_retain else "payload", why))


def check_schema(columns: Iterable[tuple[str, str]], plan: Plan) -> None:
    """Check a DataFrame's columns (name, Spark SQL type) against the contract.

    Raises ContractError that lists every problem with its remedy.
    """
    columns = list(columns)
    found = dict(columns)
    required = ["payload"] if plan.topic is not None else ["mqtt_topic", "payload"]
    check_columns("pulsebridge_mqtt", columns, MQTT_SINK_COLUMNS, required)
    newer = [name for name in _OF_MQTT_5 if name in found]
    if newer and not plan.mqtt_5:
        raise ContractError(
            f"pulsebridge_mqtt: the columns {', '.join(newer)} need MQTT 5",
            remedy="set mqtt.protocol to 5, or drop them",
        )


def read_rows(batches: Iterable[pa.RecordBatch], plan: Plan) -> Iterator[Publish | BadRow]:
    """Yield each row of a task in order, as a publish or a bad row."""
    for number, row, problem in rows_of(batches):
        if problem is None:
            yield _read_row(number, row, plan)
        else:
            yield BadRow(number, problem, _bytes(row["payload"]) or b"", "", readable(_topic(row, plan)))


def letter_room(topic: str, broker: Connected, plan: Plan) -> int:
    """Return a letter's size limit on this topic, by the limits that the broker announced."""
    most = broker.maximum_packet_size or _MAX_PACKET_BYTES
    # Its length field has one byte in an empty packet, four in the largest.
    return most - 3 - publish_size(topic, 0, _letter_properties(plan) or PublishProperties())


def letter_of(row: BadRow, plan: Plan, room: int = _MAX_PACKET_BYTES) -> tuple[bytes, PublishProperties | None]:
    """Return payload and properties of a bad row for the topic of dead letters.

    A letter above ``room`` bytes is cut: a long topic, and the payload to its head. Length and SHA-256 are added.
    It is still larger than ``room`` if reason, field and row do not fit.
    """
    letter_fields: dict[str, object] = {
        "reason": row.reason,
        "row": row.row,
        "field": row.problem.field,
        "mqtt_topic": row.topic,
        "payload_base64": _base64(row.payload),
    }
    letter = _json(letter_fields)
    if len(letter) > room:
        letter_fields |= {
            "mqtt_topic": row.topic[:_SHOWN],
            "payload_bytes": len(row.payload),
            "payload_sha256": hashlib.sha256(row.payload).hexdigest(),
            "cut": ["payload_base64", *(["mqtt_topic"] if len(row.topic) > _SHOWN else [])],
        }
        head = max(0, room - len(_json(letter_fields | {"payload_base64": ""}))) // 4 * 3
        letter = _json(letter_fields | {"payload_base64": _base64(row.payload[:head])})
    return letter, _letter_properties(plan)


def _letter_properties(plan: Plan) -> PublishProperties | None:
    return PublishProperties((_ORIGIN,)) if plan.mqtt_5 else None


def _base64(payload: bytes) -> str:
    return base64.b64encode(payload).decode("ascii")


def _json(letter_fields: Mapping[str, object]) -> bytes:
    return json.dumps(letter_fields, ensure_ascii=False).encode()


def _read_row(number: int, row: Mapping[str, Any], plan: Plan) -> Publish | BadRow:
    topic = _topic(row, plan)
    payload = _bytes(row["payload"])
    qos = 1 if row.get("qos") is None else row["qos"]
    problem = _problem(topic, payload, qos) or (_properties_problem(row) if plan.mqtt_5 else None)
    if problem is not None or topic is None or payload is None:
        assert problem is not None
        return BadRow(number, problem, payload or b"", "", topic or "")
    properties = _properties(row, plan) if plan.mqtt_5 else None
    return Publish(number, topic, payload, qos, bool(row.get("retain")), properties)


def _topic(row: Mapping[str, Any], plan: Plan) -> str | None:
    named: str | None = row.get("mqtt_topic")
    return plan.topic if named is None else named


def _bytes(payload: bytes | str | None) -> bytes | None:
    return payload.encode() if isinstance(payload, str) else payload


def _problem(topic: str | None, payload: bytes | None, qos: int) -> Problem | None:
    if topic is None:
        return Problem("mqtt_topic", "is null; set the option topic for such rows")
    why = publish_topic_problem(topic)
    if why is not None:
        return Problem("mqtt_topic", why)
    if payload is None:
        return Problem("payload", "is null; an empty payload clears a retained message")
    if len(payload) + _MAX_TEXT_BYTES > _MAX_PACKET_BYTES:
        return Problem("payload", f"has {len(payload)} bytes, MQTT allows {_MAX_PACKET_BYTES - _MAX_TEXT_BYTES}")
    if qos not in (0, 1, 2):
        return Problem("qos", f"is {qos}, wanted 0, 1 or 2")
    return None


def _properties_problem(row: Mapping[str, Any]) -> Problem | None:
    response = row.get("response_topic")
    why = None if response is None else publish_topic_problem(response)
    if why is not None:
        return Problem("response_topic", why)
    if row.get("payload_format") not in (None, 0, 1):
        return Problem("payload_format", f"is {row['payload_format']}, wanted 0 (bytes) or 1 (UTF-8)")
    expiry = row.get("expiry_s")
    if expiry is not None and not 0 <= expiry <= _MAX_EXPIRY_S:
        return Problem("expiry_s", f"is {expiry} s, wanted 0 to {_MAX_EXPIRY_S}")
    if len(row.get("correlation_data") or b"") > _MAX_TEXT_BYTES:
        return Problem("correlation_data", f"has more than {_MAX_TEXT_BYTES} bytes")
    texts = [("content_type", row.get("content_type"))]
    for pair in row.get("user_properties") or ():
        if pair is None or pair["name"] is None or pair["value"] is None:
            return Problem("user_properties", "has a null; leave it out (filter)")
        texts += [("user_properties", pair["name"]), ("user_properties", pair["value"])]
    for name, text in texts:
        why = None if text is None else text_problem(text)
        if why is not None:
            return Problem(name, why)
    return None


def _properties(row: Mapping[str, Any], plan: Plan) -> PublishProperties | None:
    user = [(pair["name"], pair["value"]) for pair in row.get("user_properties") or ()]
    if not plan.allow_loopback and all(name != ORIGIN_PROPERTY for name, _ in user):
        user.append(_ORIGIN)
    found = PublishProperties(
        tuple(user),
        row.get("content_type"),
        row.get("response_topic"),
        row.get("correlation_data"),
        row.get("payload_format"),
        row.get("expiry_s"),
    )
    return found if found != PublishProperties() else None
