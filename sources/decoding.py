"""Payloads into values, by the topic's Pulsar schema.

All rows of a query have the type of the newest schema, as it was when the query was described. An Avro message is
read with the version that it was written with, which Pulsar keeps for ever, and resolved to the newest by Avro's
rules; JSON names its fields, so a missing one gets its default. What cannot be decoded fails the task or is null, as
the user asked; it is never skipped.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from bridge.contract import SOURCE_COLUMNS
from bridge.errors import ConfigError, PulsebridgeError, TerminalError, TransientError
from sources.entries import Placed
from sources.value_types import TopicSchema, ValueType, plain_definition, single_value, type_of

__all__ = ["Decoder", "Decoding", "columns_of", "require_avro"]

_STREAMNATIVE: Final = frozenset(name.lower() for name, _ in SOURCE_COLUMNS if name.startswith("__"))


@dataclass(frozen=True)
class Decoding:
    """What the values of a query are. Travels by pickle."""

    schema: TopicSchema
    """The newest version when the query was described: the type of every row."""
    as_fields: bool
    """Whether the fields of a record are columns of their own."""
    null_undecodable: bool

    @property
    def type(self) -> ValueType:
        """The type of a value. Raises ConfigError for a schema that is not understood."""
        return type_of(self.schema)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are decoded."""
        fields = self.type.fields if self.as_fields else ()
        return tuple(name for name, _ in fields) or ("value",)


def columns_of(decoding: Decoding | None) -> tuple[tuple[str, str], ...]:
    """Return all columns of the source with their Spark types.

    A field of a record has its name before a column of ours that StreamNative's connector does not have. Raises
    ConfigError for a record whose fields cannot be columns.
    """
    if decoding is None:
        return SOURCE_COLUMNS
    value = decoding.type
    if not decoding.as_fields or not value.fields:
        return tuple((name, value.ddl if name == "value" else of) for name, of in SOURCE_COLUMNS)
    taken = {name.lower() for name, _ in value.fields}
    if len(taken) < len(value.fields) or taken & _STREAMNATIVE:
        raise ConfigError(
            "decode=fields: the record has a field that is named like a column of the source, or two that differ in "
            "case alone: " + ", ".join(name for name, _ in value.fields),
            remedy="set decode=value: then the record is one column",
        )
    return (
        *((name, of.ddl) for name, of in value.fields),
        *((name, of) for name, of in SOURCE_COLUMNS if name != "value" and name.lower() not in taken),
    )


def require_avro(schema: TopicSchema) -> None:
    """Raise ConfigError where the schema is Avro's and its reader is not installed."""
    if schema.kind != "AVRO":
        return
    try:
        import fastavro  # noqa: F401
    except ImportError as e:
        raise ConfigError(
            "decode: the topic has an AVRO schema, and the package fastavro is missing",
            remedy='pip install "pulsebridge[avro]" on driver and executors',
        ) from e


class Decoder:
    """Decodes the messages of one topic. ``version`` gives a version of its schema, and is asked once for each."""

    def __init__(self, decoding: Decoding, topic: str, version: Callable[[int], TopicSchema]) -> None:
        require_avro(decoding.schema)
        self._decoding = decoding
        self._topic = topic
        self._version = version
        self._type = decoding.type
        self._reader: Any = None
        self._writers: dict[int, Any] = {}
        self._read = self._reading()
        self.names = decoding.names
        self.arrow: Mapping[str, Any] = (
            {name: of.arrow for name, of in self._type.fields}
            if self.names != ("value",)
            else {"value": self._type.arrow}
        )
        """Arrow type of each column that is decoded."""

    def arrays(self, messages: Sequence[Placed]) -> dict[str, Any]:
        """Return the decoded columns. Raises TerminalError for a payload that is not what the schema says."""
        values = [self._value(message) for message in messages]
        try:
            array = pa.array(values, type=self._type.arrow)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            array = self._one_by_one(messages, values)
        if self.names == ("value",):
            return {"value": array}
        return dict(zip(self.names, array.flatten(), strict=True))

    def _one_by_one(self, messages: Sequence[Placed], values: list[Any]) -> Any:
        for at, (message, value) in enumerate(zip(messages, values, strict=True)):
            try:
                pa.array([value], type=self._type.arrow)
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as e:
                self._undecodable(message, e)
                values[at] = None
        return pa.array(values, type=self._type.arrow)

    def _value(self, message: Placed) -> Any:
        payload = message.payload
        if payload is None:
            return None
        try:
            return self._read(payload, message)
        except (TransientError, ConfigError):
            raise
        except Exception as e:  # noqa: BLE001  a payload can break a reader in any way
            self._undecodable(message, e)
            return None

    def _undecodable(self, message: Placed, why: Exception) -> None:
        """Raise TerminalError, unless the value is to be null."""
        if self._decoding.null_undecodable:
            return
        raise TerminalError(
            f"{self._topic}: message {message.ledger}:{message.entry}:{message.place} is not what the "
            f"topic's {self._decoding.schema.kind} schema says: {type(why).__name__}: {str(why)[:200]}",
            remedy="set decodeErrors=null: then its value is null, and payload has its bytes; or decode=none",
        ) from why

    def _reading(self) -> Callable[[bytes, Placed], Any]:
        kind = self._decoding.schema.kind
        if kind == "AVRO":
            return self._avro
        if kind == "JSON":
            shape = self._type.from_json
            return lambda payload, _: shape(json.loads(payload))
        read = single_value(kind)
        return lambda payload, _: read(payload)

    def _avro(self, payload: bytes, message: Placed) -> Any:
        from fastavro import schemaless_reader

        version = message.version
        if version not in self._writers:
            self._writers[version] = self._parsed(version)
        source = io.BytesIO(payload)
        value = schemaless_reader(source, self._writers[version], self._newest())
        if source.tell() != len(payload):
            raise ValueError(f"{len(payload) - source.tell()} bytes are left over")
        return value if self._type.from_avro is None else self._type.from_avro(value)

    def _newest(self) -> Any:
        if self._reader is None:
            self._reader = _parse(self._decoding.schema)
        return self._reader

    def _parsed(self, version: int) -> Any:
        if version < 0:  # written without a schema: the newest is the only one to try
            return self._newest()
        try:
            schema = self._version(version)
        except TransientError:
            raise
        except PulsebridgeError as e:
            raise ValueError(f"version {version} of the schema is not to be had: {e}") from e
        if schema.kind != "AVRO":
            raise ValueError(f"version {version} of the schema is {schema.kind}")
        return _parse(schema)


def _parse(schema: TopicSchema) -> Any:
    from fastavro import parse_schema

    named: dict[str, Any] = {}
    parsed = parse_schema(plain_definition(json.loads(schema.definition)), named_schemas=named)
    if _has_weightless_elements(parsed, named):
        raise ValueError(
            "the schema has an array whose elements take no bytes: a few bytes could name any number of them"
        )
    return parsed


def _has_weightless_elements(schema: Any, named: Mapping[str, Any]) -> bool:
    if isinstance(schema, list):
        return any(_has_weightless_elements(one, named) for one in schema)
    if not isinstance(schema, dict):
        return False
    if schema["type"] == "array" and not _takes_bytes(schema["items"], named):
        return True
    inside = [schema["type"], schema.get("items"), schema.get("values")]
    inside += [one["type"] for one in schema.get("fields", ())]
    return any(_has_weightless_elements(one, named) for one in inside)


def _takes_bytes(schema: Any, named: Mapping[str, Any]) -> bool:
    """Whether a value of a parsed Avro type has one byte at least (Avro 1.12, Binary Encoding)."""
    if isinstance(schema, str):
        return _takes_bytes(named[schema], named) if schema in named else schema != "null"
    if isinstance(schema, list):
        return True  # which of its types it is
    if schema["type"] == "record":
        return any(_takes_bytes(one["type"], named) for one in schema["fields"])
    return bool(schema["size"]) if schema["type"] == "fixed" else _takes_bytes(schema["type"], named)
