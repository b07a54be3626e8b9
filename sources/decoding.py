"""Decodes payloads into values by the topic's Pulsar schema.

All rows of a query have the type of the newest schema when Spark analyzed the query. An Avro message is read with the
version that wrote it and resolved to the newest by Avro's rules. Pulsar keeps all versions. JSON names its fields,
so a missing field gets its default. An undecodable value fails the task or is null, as the user chose. It is never
skipped.
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
from sources.entries import StoredPayload
from sources.value_types import TopicSchema, ValueType, plain_definition, single_value, type_of

__all__ = ["Decoder", "Decoding", "columns_of", "require_avro"]

_STREAMNATIVE: Final = frozenset(name.lower() for name, _ in SOURCE_COLUMNS if name.startswith("__"))


@dataclass(frozen=True)
class Decoding:
    """The schema of the values of a query. Is pickled."""

    schema: TopicSchema
    """The newest version when Spark analyzed the query: the type of every row."""
    as_fields: bool
    """Whether the fields of a record are separate columns."""
    null_undecodable: bool

    @property
    def type(self) -> ValueType:
        """The type of a value. Raises ConfigError for an unsupported schema."""
        return type_of(self.schema)

    @property
    def names(self) -> tuple[str, ...]:
        """The decoded columns."""
        fields = self.type.fields if self.as_fields else ()
        return tuple(name for name, _ in fields) or ("value",)


def columns_of(decoding: Decoding | None) -> tuple[tuple[str, str], ...]:
    """Return all columns of the source with their Spark types.

    A field of a record replaces a column of the same name that StreamNative's connector does not have. Raises
    ConfigError for a record whose fields cannot be columns.
    """
    if decoding is None:
        return SOURCE_COLUMNS
    value = decoding.type
    if not decoding.as_fields or not value.fields:
        return tuple((name, value.ddl if name == "value" else of) for name, of in SOURCE_COLUMNS)
    field_names = {name.lower() for name, _ in value.fields}
    if len(field_names) < len(value.fields) or field_names & _STREAMNATIVE:
        raise ConfigError(
            "decode=fields: the record has a field with the name of a source column, or two that differ only in case: "
            + ", ".join(name for name, _ in value.fields),
            remedy="set decode=value: then the record is one column",
        )
    return (
        *((name, of.ddl) for name, of in value.fields),
        *((name, of) for name, of in SOURCE_COLUMNS if name != "value" and name.lower() not in field_names),
    )


def require_avro(schema: TopicSchema) -> None:
    """Raise ConfigError if the schema is Avro's and the Avro reader is not installed."""
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
    """Decodes the messages of one topic. ``version`` returns a version of its schema and is called once for each."""

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
        """Arrow type of each decoded column."""

    def arrays(self, messages: Sequence[StoredPayload]) -> dict[str, Any]:
        """Return the decoded columns. Raises TerminalError for a payload that does not match the schema."""
        values = [self._value(message) for message in messages]
        try:
            array = pa.array(values, type=self._type.arrow)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            array = self._one_by_one(messages, values)
        if self.names == ("value",):
            return {"value": array}
        return dict(zip(self.names, array.flatten(), strict=True))

    def _one_by_one(self, messages: Sequence[StoredPayload], values: list[Any]) -> Any:
        for at, (message, value) in enumerate(zip(messages, values, strict=True)):
            try:
                pa.array([value], type=self._type.arrow)
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as e:
                self._undecodable(message, e)
                values[at] = None
        return pa.array(values, type=self._type.arrow)

    def _value(self, message: StoredPayload) -> Any:
        payload = message.payload
        if payload is None:
            return None
        try:
            return self._read(payload, message)
        except (TransientError, ConfigError):
            raise
        except Exception as e:  # noqa: BLE001  a payload can make a reader raise anything
            self._undecodable(message, e)
            return None

    def _undecodable(self, message: StoredPayload, why: Exception) -> None:
        """Raise TerminalError, unless undecodable values become null."""
        if self._decoding.null_undecodable:
            return
        raise TerminalError(
            f"{self._topic}: message {message.ledger}:{message.entry}:{message.batch_index} does not match the "
            f"topic's {self._decoding.schema.kind} schema: {type(why).__name__}: {str(why)[:200]}",
            remedy="set decodeErrors=null: then its value is null, and payload has its bytes; or set decode=none",
        ) from why

    def _reading(self) -> Callable[[bytes, StoredPayload], Any]:
        kind = self._decoding.schema.kind
        if kind == "AVRO":
            return self._avro
        if kind == "JSON":
            shape = self._type.from_json
            return lambda payload, _: shape(json.loads(payload))
        read = single_value(kind)
        return lambda payload, _: read(payload)

    def _avro(self, payload: bytes, message: StoredPayload) -> Any:
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
        if version < 0:  # written without a schema: only the newest can be tried
            return self._newest()
        try:
            schema = self._version(version)
        except TransientError:
            raise
        except PulsebridgeError as e:
            raise ValueError(f"version {version} of the schema is not available: {e}") from e
        if schema.kind != "AVRO":
            raise ValueError(f"version {version} of the schema is {schema.kind}")
        return _parse(schema)


def _parse(schema: TopicSchema) -> Any:
    from fastavro import parse_schema

    named: dict[str, Any] = {}
    parsed = parse_schema(plain_definition(json.loads(schema.definition)), named_schemas=named)
    if _has_weightless_elements(parsed, named):
        raise ValueError(
            "the schema has an array whose elements use no bytes: a few bytes could name any number of them"
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
    """Whether an encoded value has at least one byte (Avro 1.12, Binary Encoding)."""
    if isinstance(schema, str):
        return _takes_bytes(named[schema], named) if schema in named else schema != "null"
    if isinstance(schema, list):
        return True  # the index of the branch
    if schema["type"] == "record":
        return any(_takes_bytes(one["type"], named) for one in schema["fields"])
    return bool(schema["size"]) if schema["type"] == "fixed" else _takes_bytes(schema["type"], named)
