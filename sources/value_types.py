"""Maps a topic's Pulsar schema to Spark and Arrow types, and to conversions.

Avro and JSON topics have the same definition, an Avro schema in JSON; the others are single values. Types are those
of StreamNative's connector. All are nullable: a tombstone has no value, and readers must not rely on producers.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any, Final, TypeAlias

import pyarrow as pa

from bridge.errors import ConfigError

__all__ = ["TopicSchema", "ValueType", "plain_definition", "single_value", "type_of"]

Shape: TypeAlias = Callable[[Any], Any]
"""Converts a decoder's value to one for Arrow. Raises ValueError for a value of another type."""

_UTC: Final = pa.timestamp("us", tz="UTC")
_KEPT: Final = frozenset({"decimal"})
"""Logical types that the Avro reader converts; it reads the others as plain numbers."""


@dataclass(frozen=True)
class TopicSchema:
    """One version of a topic's schema, as Pulsar stores it."""

    kind: str
    """Pulsar's name of the type: AVRO, JSON, STRING, INT32, …"""
    definition: str = ""
    """The Avro schema of AVRO and JSON, as JSON text."""


@dataclass(frozen=True)
class ValueType:
    """The Spark and Arrow types of a value, and its conversions. ``fields`` are those of a record."""

    ddl: str
    arrow: Any
    from_avro: Shape | None
    """None if the value needs no conversion."""
    from_json: Shape
    fields: tuple[tuple[str, ValueType], ...] = ()


def type_of(schema: TopicSchema) -> ValueType:
    """Return the type of a topic's values. Raises ConfigError, with the remedy, for an unsupported schema."""
    if schema.kind in _SINGLE:
        ddl, arrow, _ = _SINGLE[schema.kind]
        return ValueType(ddl, arrow, None, _same)
    try:
        if schema.kind not in ("AVRO", "JSON"):
            raise _Unknown(f"values of Pulsar's type {schema.kind}")
        return _Definition(json.loads(schema.definition), as_json=schema.kind == "JSON").type()
    except (_Unknown, ValueError, KeyError, TypeError) as e:
        raise ConfigError(
            f"decode: the topic's schema is not supported: {e}",
            remedy="set decode=none and decode value yourself",
        ) from e


def single_value(kind: str) -> Shape:
    """Return the decoder for a topic without a record schema. It raises ValueError."""
    return _SINGLE[kind][2]


def plain_definition(schema: Any) -> Any:
    """Return an Avro schema without logical types that become Python objects; decimals stay."""
    if isinstance(schema, list):
        return [plain_definition(of) for of in schema]
    if isinstance(schema, dict):
        return {
            name: plain_definition(value) if name in ("type", "items", "values", "fields") else value
            for name, value in schema.items()
            if name != "logicalType" or value in _KEPT
        }
    return schema


class _Unknown(Exception):
    """Unsupported part of a schema."""


class _Definition:
    """One Avro schema during its parsing, with the names defined so far."""

    def __init__(self, schema: Any, *, as_json: bool) -> None:
        self._schema = schema
        self._as_json = as_json
        self._named: dict[str, Any] = {}
        self._open: set[str] = set()

    def type(self) -> ValueType:
        return self._type(self._schema, "")

    def _type(self, schema: Any, namespace: str) -> ValueType:
        if isinstance(schema, list):
            return self._union(schema, namespace)
        if isinstance(schema, str):
            if schema in _PRIMITIVE:
                return _PRIMITIVE[schema]
            named = self._named.get(schema) or self._named.get(f"{namespace}.{schema}")
            if named is None or schema in self._open or f"{namespace}.{schema}" in self._open:
                raise _Unknown(f"{schema!r}, which is not a known type, or contains itself")
            return self._type(*named)
        kind, logical = schema["type"], schema.get("logicalType")
        if not isinstance(kind, str):
            return self._type(kind, namespace)
        if (kind, logical) in _LOGICAL:
            return _LOGICAL[kind, logical]
        if logical == "decimal" and kind in ("bytes", "fixed") and int(schema["precision"]) <= 38:
            return _decimal(int(schema["precision"]), int(schema.get("scale", 0)))
        if kind in ("record", "error"):
            return self._record(schema, namespace)
        if kind in ("enum", "fixed"):
            self._name(schema, namespace)
            return _PRIMITIVE["string" if kind == "enum" else "bytes"]
        if kind == "array":
            return _array(self._type(schema["items"], namespace))
        if kind == "map":
            return _map(self._type(schema["values"], namespace))
        return self._type(kind, namespace)

    def _union(self, branches: list[Any], namespace: str) -> ValueType:
        rest = [of for of in branches if of != "null"]
        if len(rest) == 1:
            return self._type(rest[0], namespace)
        if rest and all(of in ("int", "long") for of in rest):
            return _PRIMITIVE["long"]
        if rest and all(of in ("float", "double") for of in rest):
            return _PRIMITIVE["double"]
        raise _Unknown(f"a union of {len(rest)} types")

    def _name(self, schema: Any, namespace: str) -> str:
        """Note a named type; return its full name."""
        full = str(schema["name"])
        if "." not in full and (schema.get("namespace") or namespace):
            full = f"{schema.get('namespace') or namespace}.{full}"
        inner = full.rpartition(".")[0]
        self._named.setdefault(full, (schema, inner))
        self._named.setdefault(full.rpartition(".")[2], (schema, inner))
        return full

    def _record(self, schema: Any, namespace: str) -> ValueType:
        full = self._name(schema, namespace)
        if full in self._open:
            raise _Unknown(f"the record {full}, which contains itself")
        self._open.add(full)
        fields = []
        defaults = {}
        for field in schema["fields"]:
            name = str(field["name"])
            of = self._type(field["type"], full.rpartition(".")[0])
            fields.append((name, of))
            if self._as_json and field.get("default") is not None:
                defaults[name] = _default(of, field["default"])
        self._open.discard(full)
        return _struct(tuple(fields), defaults)


def _default(of: ValueType, value: Any) -> Any:
    if of.ddl == "binary":  # Avro writes a default of bytes as text, one character for each byte
        return str(value).encode("latin-1")
    return of.from_json(value)


def _struct(fields: tuple[tuple[str, ValueType], ...], defaults: Mapping[str, Any]) -> ValueType:
    shaped = [(name, of.from_avro) for name, of in fields if of.from_avro is not None]

    def from_avro(value: Any) -> Any:
        if value is not None:
            for name, shape in shaped:
                value[name] = shape(value[name])
        return value

    def from_json(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise ValueError(f"{value!r:.80} is not an object")
        return {name: of.from_json(value[name]) if name in value else defaults.get(name) for name, of in fields}

    ddl = ",".join(f"`{name}`:{of.ddl}" for name, of in fields)
    arrow = pa.struct([pa.field(name, of.arrow) for name, of in fields])
    return ValueType(f"struct<{ddl}>", arrow, from_avro if shaped else None, from_json, fields)


def _array(of: ValueType) -> ValueType:
    shape = of.from_avro

    def from_avro(value: Any) -> Any:
        assert shape is not None
        return None if value is None else [shape(item) for item in value]

    def from_json(value: Any) -> Any:
        if value is not None and not isinstance(value, list):
            raise ValueError(f"{value!r:.80} is not an array")
        return None if value is None else [of.from_json(item) for item in value]

    arrow = pa.list_(pa.field("element", of.arrow))
    return ValueType(f"array<{of.ddl}>", arrow, None if shape is None else from_avro, from_json)


def _map(of: ValueType) -> ValueType:
    shape = of.from_avro or _same

    def from_avro(value: Any) -> Any:
        return None if value is None else [(name, shape(item)) for name, item in value.items()]

    def from_json(value: Any) -> Any:
        if value is not None and not isinstance(value, dict):
            raise ValueError(f"{value!r:.80} is not an object")
        return None if value is None else [(name, of.from_json(item)) for name, item in value.items()]

    return ValueType(f"map<string,{of.ddl}>", pa.map_(pa.string(), of.arrow), from_avro, from_json)


def _decimal(precision: int, scale: int) -> ValueType:
    def from_json(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, (int, float, str, type(None))):
            raise ValueError(f"{value!r:.80} is not a number")
        try:
            return None if value is None else Decimal(str(value)).quantize(Decimal(1).scaleb(-scale))
        except ArithmeticError as e:
            raise ValueError(f"{value!r:.80} is not a number") from e

    return ValueType(f"decimal({precision},{scale})", pa.decimal128(precision, scale), None, from_json)


def _same(value: Any) -> Any:
    return value


def _only(what: str, *types: type) -> Shape:
    def shape(value: Any) -> Any:
        if value is None or (isinstance(value, types) and (bool in types or not isinstance(value, bool))):
            return value
        raise ValueError(f"{value!r:.80} is not a {what}")

    return shape


def _float(value: Any) -> Any:
    if value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    return _only("number", int, float)(value)


def _bytes(value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.80} is not base64")
    return base64.b64decode(value, validate=True)


def _days(value: Any) -> Any:
    if isinstance(value, str):
        return date.fromisoformat(value)
    return _only("date", int)(value)


def _micros(unit: int) -> Shape:
    def shape(value: Any) -> Any:
        if isinstance(value, str):
            at = datetime.fromisoformat(value.replace("Z", "+00:00"))
            return at if at.tzinfo is not None else at.replace(tzinfo=timezone.utc)
        number = _only("time", int)(value)
        return None if number is None else number * unit

    return shape


def _thousandfold(value: Any) -> Any:
    return None if value is None else value * 1000


_PRIMITIVE: Final[Mapping[str, ValueType]] = {
    "boolean": ValueType("boolean", pa.bool_(), None, _only("boolean", bool)),
    "int": ValueType("int", pa.int32(), None, _only("whole number", int)),
    "long": ValueType("bigint", pa.int64(), None, _only("whole number", int)),
    "float": ValueType("float", pa.float32(), None, _float),
    "double": ValueType("double", pa.float64(), None, _float),
    "bytes": ValueType("binary", pa.binary(), None, _bytes),
    "string": ValueType("string", pa.string(), None, _only("string", str)),
}
_LOGICAL: Final[Mapping[tuple[Any, Any], ValueType]] = {
    ("int", "date"): ValueType("date", pa.date32(), None, _days),
    ("long", "timestamp-millis"): ValueType("timestamp", _UTC, _thousandfold, _micros(1000)),
    ("long", "timestamp-micros"): ValueType("timestamp", _UTC, None, _micros(1)),
}


def _packed(form: str) -> Shape:
    unpack = struct.Struct(form)

    def read(payload: bytes) -> Any:
        if len(payload) != unpack.size:
            raise ValueError(f"{len(payload)} bytes, not {unpack.size}")
        return unpack.unpack(payload)[0]

    return read


def _instant(payload: bytes) -> int:
    if len(payload) != 12:
        raise ValueError(f"{len(payload)} bytes, not 12")
    seconds, nanos = struct.unpack(">qi", payload)
    return int(seconds) * 1_000_000 + int(nanos) // 1000


_ms: Final = _packed(">q")
_SINGLE: Final[Mapping[str, tuple[str, Any, Shape]]] = {
    "BYTES": ("binary", pa.binary(), _same),
    "NONE": ("binary", pa.binary(), _same),
    "STRING": ("string", pa.string(), lambda payload: payload.decode()),
    "BOOLEAN": ("boolean", pa.bool_(), _packed(">?")),
    "INT8": ("tinyint", pa.int8(), _packed(">b")),
    "INT16": ("smallint", pa.int16(), _packed(">h")),
    "INT32": ("int", pa.int32(), _packed(">i")),
    "INT64": ("bigint", pa.int64(), _ms),
    "FLOAT": ("float", pa.float32(), _packed(">f")),
    "DOUBLE": ("double", pa.float64(), _packed(">d")),
    "DATE": ("date", pa.date32(), lambda payload: _ms(payload) // 86_400_000),
    "LOCAL_DATE": ("date", pa.date32(), _ms),
    "TIMESTAMP": ("timestamp", _UTC, lambda payload: _ms(payload) * 1000),
    "INSTANT": ("timestamp", _UTC, _instant),
}
"""Pulsar's types of a single value, all big-endian: Spark type, Arrow type, payload decoder."""
