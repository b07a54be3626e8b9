"""Declarations of typed tables: the messages of a table, and the decoding of their payloads.

A declaration is data, the same in YAML and in Python, and is checked without Spark. ``streaming.decoding`` executes it.
``bridge.settings.presets.declared_tables`` collects the declarations.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from zoneinfo import ZoneInfo

from pydantic import Field, field_validator, model_validator

from bridge.routing.message_fields import MessageField
from bridge.routing.templates import Filter
from bridge.settings.base import Section, checked_by
from bridge.settings.units import Duration, Size

__all__ = ["Decoding", "Format", "TableDeclaration", "TimeUnit", "TimeZone", "filter_problem", "path_steps"]

Format = Literal["json", "csv", "avro", "protobuf", "cbor", "raw", "python", "none"]
TimeUnit = Literal["iso", "s", "ms", "us", "ns", "auto"]

_OF_FORM: Final = {
    "names": ("csv",),
    "separator": ("csv",),
    "descriptor": ("protobuf",),
    "descriptor_set": ("protobuf",),
    "message": ("protobuf",),
    "avro_schema": ("avro",),
    "function": ("python",),
}
_NEEDED: Final = {"avro": "avro_schema", "protobuf": "message", "python": "function"}
# Spark raises if such a cast gets an invalid text, so one payload would stop the batch (H37).
_RAISES: Final = re.compile(r"(?<!try_)\bcast\s*\((?!.*\bas\s+string\s*\))|::(?!\s*string\b)", re.I)


def path_steps(text: str) -> tuple[str | int, ...]:
    """Return the steps of ``$.a['b'][0]``, none for ``$``. Raises ValueError for an invalid path."""
    return () if text == "$" else MessageField.parse("json", text).steps


def _known_zone(name: str) -> None:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError) as e:
        raise ValueError(f"unknown time zone {name!r}; give one like Europe/Berlin") from e


def _safe(expression: str) -> None:
    if _RAISES.search(expression):
        raise ValueError(f"{expression!r} may raise an error for a device's value: write try_cast(… AS …)")


def _path_or_sql(text: str) -> None:
    if text.startswith("$"):
        path_steps(text.removeprefix("$") if text.startswith("$$") else text)
    else:
        _safe(text)


TimeZone = Annotated[str, checked_by(_known_zone)]
"""The IANA name of a time zone."""
_Expression = Annotated[str, checked_by(_safe)]
_PathOrSql = Annotated[str, checked_by(_path_or_sql)]


class Decoding(Section):
    """The decoding of the payloads of one MQTT filter into rows.

    ``$.a.b`` is a JSON path into the row's document. ``$$.a.b`` is a path into the whole message, if ``elements``
    divides it into rows. Other texts are SQL expressions over the fields, the message's columns and the filter's
    captures. A field with the same name as one of those is ``fields.NAME``.
    """

    filter: Annotated[str, checked_by(Filter.of_settings)] = Field(min_length=1)
    """MQTT topics of its messages, with named captures that become columns: ``tele/+device/SENSOR``."""
    fields: str | None = None
    """DDL of the payload's fields: ``temperature double, AM2301 struct<Temperature double>``; none: a row for each
    field, as in the table readings."""
    columns: dict[str, _Expression] = {}
    """Columns of the table, each with its SQL expression; none: the fields. Devices choose the values, so use the try_
    functions: an expression that raises an error stops the query."""
    where: _Expression | None = None
    """SQL condition of the rows of the table, like ``columns``. It does not apply to payloads that cannot be decoded.
    """
    format: Format = "json"
    """Format of the payloads. raw: the payload is the single field of ``fields``, as text; python: ``function``; none:
    these messages are not readings and give no rows."""
    names: tuple[str, ...] = ()
    """csv: names of a line's fields, in order; default: those of ``fields``."""
    separator: str = Field(",", min_length=1, max_length=1)
    """csv: character between two fields."""
    avro_schema: str | None = None
    """avro: the writer's schema, as JSON."""
    descriptor: Path | None = None
    """protobuf: output file of protoc with --include_imports -o."""
    descriptor_set: str | None = None
    """protobuf: the same file as base64."""
    message: str | None = None
    """protobuf: full name of the message."""
    function: str | None = Field(None, pattern=r"^[\w.]+:[\w.]+$")
    """python: module:function, in Python also the function: ``decode(payload: bytes, message: Message)``. It returns a
    row as a mapping, any number of rows, or None for a message that is not a reading (``sources.payloads.message``)."""
    compression: Literal["gzip", "zstd"] | None = None
    """Compression of the payloads."""
    elements: Annotated[str, checked_by(path_steps)] | None = None
    """JSON path of an array whose elements are rows; $: the payload itself."""
    id: _PathOrSql | None = None
    """JSON path or SQL expression of the row's id; none: the route's reading_id, else the message's position in Pulsar,
    which is unique."""
    time: _PathOrSql | None = None
    """JSON path or SQL expression of its time; none: the route's reading_time, else the time of arrival."""
    time_unit: TimeUnit = "auto"
    """Format of the time: ISO 8601, or a number since 1970 in s, ms, us or ns; auto: found from the value."""
    time_zone: TimeZone | None = None
    """IANA time zone of times without one, like Europe/Berlin; none: ``streaming.time_zone``."""
    ignored: tuple[str, ...] = ()
    """Fields that are left out, as ``a`` or ``a.b``; they do not count as unknown."""
    max_size: Size = Field(Size("1MiB"), ge=1)
    """Maximum size of a payload, also after decompression, and of its document."""
    max_elements: int = Field(10_000, ge=1)
    """Maximum rows of one message."""
    max_depth: int = Field(64, ge=1, le=400)
    """avro, cbor, protobuf, python: maximum levels. Spark reads JSON up to 1,000."""
    max_values: int = Field(100_000, ge=1)
    """avro, cbor, protobuf, python: maximum values and keys of a payload; a protobuf message counts all its possible
    fields."""
    max_time: Duration = Field(Duration("1s"), gt=0)
    """Maximum processor time to decode one payload in Python. The elapsed time may be ten times as long."""
    max_memory: Size = Field(Size("512MiB"), ge=16 * 1024 * 1024)
    """Maximum memory to decode payloads in Python, without that of Python itself. Linux enforces it."""

    @field_validator("columns")
    @classmethod
    def _columns(cls, columns: dict[str, str]) -> dict[str, str]:
        for name in columns:
            if not name or name.startswith("_"):
                raise ValueError(f"column {name!r}: a name must not be empty or begin with _")
        return columns

    @field_validator("function", mode="before")
    @classmethod
    def _named(cls, function: Any) -> Any:
        return f"{function.__module__}:{function.__qualname__}" if callable(function) else function

    @model_validator(mode="after")
    def _of_one_form(self) -> Decoding:
        for name, forms in _OF_FORM.items():
            if getattr(self, name) != type(self).model_fields[name].default and self.format not in forms:
                raise ValueError(f"{name} is for format {forms[0]}, and the format is {self.format}")
        needed = _NEEDED.get(self.format)
        if needed is not None and getattr(self, needed) is None:
            raise ValueError(f"format {self.format} needs {needed}")
        if self.format == "protobuf" and (self.descriptor is None) == (self.descriptor_set is None):
            raise ValueError("format protobuf needs either descriptor or descriptor_set")
        if self.format == "none" and self.model_fields_set - {"filter", "format"}:
            raise ValueError("format none gives no rows: give only a filter")
        if self.format in ("csv", "raw") and self.fields is None and not self.names:
            raise ValueError(f"format {self.format} needs fields")
        if self.format in ("raw", "python") and self.elements is not None:
            raise ValueError(f"elements: not for format {self.format}")
        if self.elements not in (None, "$") and self.format == "csv":
            raise ValueError("elements: give $ for a row on each line")
        if len({name.lower() for name in self.names}) < len(self.names) or not all(self.names):
            raise ValueError("names: must be unique and not empty")
        if (self.columns or self.where) and self.fields is None:
            raise ValueError("columns and where need fields: declare fields")
        return self

    @property
    def many(self) -> bool:
        """Whether a message may give several documents."""
        return self.elements is not None or self.format == "python"


def filter_problem(decodings: Sequence[Decoding]) -> str | None:
    """Return the problem if a decoding would never apply, else None."""
    parsed = [Filter.parse(one.filter) for one in decodings]
    for number, later in enumerate(parsed):
        for earlier in parsed[:number]:
            if earlier.mqtt == later.mqtt:
                return f"two decodings have the filter {later.mqtt}"
            if earlier.covers(later):
                return (
                    f"the decoding of {later.mqtt} never applies, because {earlier.mqtt} before it matches the same "
                    "topics"
                )
    return None


class TableDeclaration(Section):
    """A table of typed rows, in ``streaming.tables`` or a preset."""

    name: str = Field(pattern=r"^\w+(\.\w+){0,2}$")
    """Name of the table."""
    comment: str | None = None
    """Comment of the table."""
    cluster_by: tuple[str, ...] = ()
    """Columns for clustering."""
    table_properties: dict[str, str] = {}
    """Delta table properties."""
    keys: tuple[str, ...] = ("device", "_id", "event_time")
    """Columns that identify a row: a second row with the same values is left out; empty: every row is stored. With a
    time among them, Spark skips most of the table's files."""
    suite: str | None = None
    """Great Expectations suite that validates its rows."""
    schema_evolution: Literal["rescue", "add_columns", "fail"] = "rescue"
    """rescue: unknown fields become JSON in _rescued_data; add_columns: columns; fail: an error stops the job."""
    decoding: tuple[Decoding, ...] = Field(min_length=1)
    """Decoding of messages into rows: one, or a list; the first one with a matching filter applies."""

    @field_validator("decoding", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return value if isinstance(value, list | tuple) else (value,)

    @model_validator(mode="after")
    def _each_is_used(self) -> TableDeclaration:
        problem = filter_problem(self.decoding)
        if problem is not None:
            raise ValueError(f"table {self.name}: {problem}")
        return self
