"""The values of metrics, from their protobuf fields to Python and JSON, and back (specification, chapter 6.4).

A value that does not fit its data type is a ValueError with the reason: of one metric, not of its payload.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

__all__ = ["MAX_MS", "NAMES", "NUMBERS", "Budget", "Value", "json_text", "properties_of", "set_value", "value_of"]

NAMES: Final = dict(enumerate((
    "Unknown", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Float", "Double",
    "Boolean", "String", "DateTime", "Text", "UUID", "DataSet", "Bytes", "File", "Template", "PropertySet",
    "PropertySetList", "Int8Array", "Int16Array", "Int32Array", "Int64Array", "UInt8Array", "UInt16Array",
    "UInt32Array", "UInt64Array", "FloatArray", "DoubleArray", "BooleanArray", "StringArray", "DateTimeArray",
)))  # fmt: skip
"""Names of the data types by their number."""
NUMBERS: Final = {name: number for number, name in NAMES.items()}
MAX_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, beyond which Spark and Python have no timestamp."""

_SIGNED: Final = {1: 8, 2: 16, 3: 32, 4: 64}
_UNSIGNED: Final = {5: 8, 6: 16, 7: 32, 8: 64}
_TEXTS: Final = (12, 14, 15)
_BYTES: Final = (17, 18)
_WIDTH: Final = {"int_value": 32, "long_value": 64}
_PACKED: Final = {22: "b", 23: "h", 24: "i", 25: "q", 26: "B", 27: "H", 28: "I", 29: "Q", 30: "f", 31: "d", 34: "Q"}
"""Arrays of numbers: the struct format of an element. All are little-endian."""
_BOOLEANS, _STRINGS = 32, 33
_BIGINT: Final = 1 << 63


class Value(NamedTuple):
    """A metric's value by the columns of the table; all are None for a null."""

    value: float | None = None
    """Any number; 0 or 1 for a Boolean."""
    integer: int | None = None
    """An exact integer; None for an UInt64 beyond ``bigint``, whose digits are in ``text``."""
    truth: bool | None = None
    text: str | None = None
    time_ms: int | None = None
    content: bytes | None = None
    json: str | None = None
    """DataSet, Template, arrays."""


class Budget:
    """The number of array elements that one payload may still have."""

    def __init__(self, left: int) -> None:
        self._left = left

    def take(self, count: int) -> None:
        """Count elements. Raises ValueError beyond the budget."""
        self._left -= count
        if self._left < 0:
            raise ValueError("more elements of arrays than a payload may have")


def value_of(metric: Any, datatype: int, budget: Budget) -> Value:
    """Return the value of a protobuf metric of a data type; of type 0, which is unknown, as the field shows it.

    Raises ValueError for a value that does not fit.
    """
    field = metric.WhichOneof("value")
    if field is None or metric.is_null:
        return Value()
    raw = getattr(metric, field)
    if datatype == 0:
        datatype = _SHOWN[field]
    if datatype in _SIGNED or datatype in _UNSIGNED:
        number = _integer(raw, field, datatype)
        if number < _BIGINT:
            return Value(float(number), number)
        return Value(float(number), text=str(number))
    if datatype in (9, 10):
        return Value(float(_of(field, raw, datatype, "double_value", "float_value")))
    if datatype == 11:
        truth = bool(_of(field, raw, datatype, "boolean_value"))
        return Value(float(truth), truth=truth)
    if datatype in _TEXTS:
        return Value(text=_of(field, raw, datatype, "string_value"))
    if datatype == 13:
        return Value(time_ms=checked_ms(_of(field, raw, datatype, "long_value", "int_value")))
    if datatype in _BYTES:
        return Value(content=_of(field, raw, datatype, "bytes_value"))
    if datatype == 16:
        return Value(json=json_text(_data_set(_of(field, raw, datatype, "dataset_value"))))
    if datatype == 19:
        return Value(json=json_text(_template(_of(field, raw, datatype, "template_value"), budget)))
    if datatype in _PACKED or datatype in (_BOOLEANS, _STRINGS):
        return Value(json=json_text(_array(_of(field, raw, datatype, "bytes_value"), datatype, budget)))
    raise ValueError(f"data type {NAMES.get(datatype, datatype)} is not one of metrics")


_SHOWN: Final = {
    "int_value": 7, "long_value": 8, "float_value": 9, "double_value": 10, "boolean_value": 11, "string_value": 12,
    "bytes_value": 17, "dataset_value": 16, "template_value": 19, "propertyset_value": 20, "propertysets_value": 21,
}  # fmt: skip
"""The data type that a field has without a declared one."""


def checked_ms(milliseconds: int) -> int:
    """Return a time. Raises ValueError beyond the year 9999."""
    if milliseconds > MAX_MS:
        raise ValueError(f"time {milliseconds} ms is after the year 9999")
    return milliseconds


def json_text(value: Any) -> str:
    """Return JSON without spaces. Numbers that JSON lacks are the texts NaN, Infinity and -Infinity."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def properties_of(properties: Any) -> dict[str, Any]:
    """Return a PropertySet as a mapping of names to values. Raises ValueError for keys without their values."""
    if len(properties.keys) != len(properties.values):
        raise ValueError(f"a PropertySet has {len(properties.keys)} keys and {len(properties.values)} values")
    return {name: _property(one) for name, one in zip(properties.keys, properties.values, strict=True)}


def _property(one: Any) -> Any:
    field = one.WhichOneof("value")
    if field is None or one.is_null:
        return None
    if field == "propertyset_value":
        return properties_of(one.propertyset_value)
    if field == "propertysets_value":
        return [properties_of(each) for each in one.propertysets_value.propertyset]
    return _plain(one, field, one.type)


def _plain(one: Any, field: str, datatype: int) -> Any:
    """Return a value of a basic data type for JSON."""
    raw = getattr(one, field)
    if datatype in _SIGNED or datatype in _UNSIGNED:
        return _integer(raw, field, datatype)
    return _number(raw) if isinstance(raw, float) else raw


def _integer(raw: int, field: str, datatype: int) -> int:
    """Return an integer from its two's complement, of the type's own width or of the field's."""
    width = _WIDTH.get(field)
    if width is None:
        raise ValueError(f"{NAMES[datatype]} in the field {field}")
    bits = _UNSIGNED.get(datatype)
    if bits is not None:
        if raw >> bits:
            raise ValueError(f"{raw} is not an {NAMES[datatype]}")
        return raw
    bits = _SIGNED[datatype]
    number = raw - (1 << width) if raw >> (width - 1) else raw
    half = 1 << (bits - 1)
    if -half <= number < half:
        return number
    if 0 <= number < 2 * half:
        return number - 2 * half
    raise ValueError(f"{number} is not an {NAMES[datatype]}")


def _of(field: str, raw: Any, datatype: int, *fields: str) -> Any:
    if field not in fields:
        raise ValueError(f"{NAMES[datatype]} in the field {field}")
    return raw


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _array(packed: bytes, datatype: int, budget: Budget) -> list[Any]:
    if datatype == _STRINGS:
        budget.take(packed.count(0))
        if packed and packed[-1]:
            raise ValueError("the last text of a StringArray has no end")
        return [one.decode() for one in packed.split(b"\0")[:-1]]
    if datatype == _BOOLEANS:
        if len(packed) < 4:
            raise ValueError(f"a BooleanArray of {len(packed)} bytes has no length")
        count = int.from_bytes(packed[:4], "little")
        if len(packed) != 4 + (count + 7) // 8:
            raise ValueError(f"a BooleanArray of {count} values has {len(packed)} bytes")
        budget.take(count)
        return [bool(packed[4 + n // 8] >> (7 - n % 8) & 1) for n in range(count)]
    size = struct.calcsize(f"<{_PACKED[datatype]}")
    count, left = divmod(len(packed), size)
    if left:
        raise ValueError(f"{len(packed)} bytes are no {NAMES[datatype]}, whose elements have {size}")
    budget.take(count)
    found: Iterable[Any] = struct.unpack(f"<{count}{_PACKED[datatype]}", packed)
    return [_number(one) for one in found] if datatype in (30, 31) else list(found)


def _data_set(found: Any) -> dict[str, Any]:
    columns, types = list(found.columns), list(found.types)
    if len(columns) != len(types) or found.num_of_columns != len(columns):
        raise ValueError(
            f"a DataSet has {len(columns)} columns, {len(types)} types and num_of_columns {found.num_of_columns}"
        )
    rows = []
    for row in found.rows:
        if len(row.elements) != len(columns):
            raise ValueError(f"a row of a DataSet has {len(row.elements)} elements for {len(columns)} columns")
        rows.append([
            None if (field := one.WhichOneof("value")) is None else _plain(one, field, kind)
            for one, kind in zip(row.elements, types, strict=True)
        ])  # fmt: skip
    return {"columns": columns, "types": [NAMES.get(one, str(one)) for one in types], "rows": rows}


def _template(found: Any, budget: Budget) -> dict[str, Any]:
    made: dict[str, Any] = {"is_definition": found.is_definition}
    for name in ("template_ref", "version"):
        if found.HasField(name):
            made[name] = getattr(found, name)
    made["parameters"] = {
        one.name: None if (field := one.WhichOneof("value")) is None else _plain(one, field, one.type)
        for one in found.parameters
    }
    made["metrics"] = [_member(one, budget) for one in found.metrics]
    return made


def _member(metric: Any, budget: Budget) -> dict[str, Any]:
    value = value_of(metric, metric.datatype, budget)
    shown: Any = value.text if value.text is not None else value.time_ms
    if value.integer is not None:
        shown = value.integer
    elif value.truth is not None:
        shown = value.truth
    elif value.value is not None and value.text is None:
        shown = _number(value.value)
    elif value.content is not None:
        shown = base64.b64encode(value.content).decode()
    elif value.json is not None:
        shown = json.loads(value.json)
    made: dict[str, Any] = {"name": metric.name} if metric.HasField("name") else {"alias": metric.alias}
    if metric.datatype:
        made["datatype"] = NAMES.get(metric.datatype, str(metric.datatype))
    return made | {"value": shown}


# --- to the wire ---


def _whole(text: str) -> int:
    number = float(text) if any(c in text for c in ".eE") else int(text)
    if number != int(number):
        raise ValueError(f"{text!r} is not an integer")
    return int(number)


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() in ("true", "1")


_WRITTEN: Final[dict[int, tuple[str, Callable[[str], Any]]]] = {
    **dict.fromkeys((*_SIGNED, *_UNSIGNED), ("int_value", _whole)),
    4: ("long_value", _whole),
    7: ("long_value", _whole),
    8: ("long_value", _whole),
    9: ("float_value", float),
    10: ("double_value", float),
    11: ("boolean_value", _boolean),
    **dict.fromkeys(_TEXTS, ("string_value", str)),
    13: ("long_value", _whole),
    **dict.fromkeys(_BYTES, ("bytes_value", lambda text: base64.b64decode(text, validate=True))),
}
"""By data type: the field of a command's value, and how the value is read from text."""


def set_value(metric: Any, datatype: int, text: str | None) -> None:
    """Write a command's value, given as text, into a protobuf metric; bytes as base64, times as ms since 1970.

    Raises ValueError for a text that does not fit the data type, or a type that no command can have.
    """
    if datatype not in _WRITTEN:
        raise ValueError(f"data type {NAMES.get(datatype, datatype)} cannot be written by a command")
    if text is None:
        metric.is_null = True
        return
    field, read = _WRITTEN[datatype]
    value = read(text)
    bits = _SIGNED.get(datatype)
    if bits is not None:
        if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
            raise ValueError(f"{value} is not an {NAMES[datatype]}")
        value &= (1 << _WIDTH[field]) - 1
    elif (datatype in _UNSIGNED or datatype == 13) and (value < 0 or value >> _UNSIGNED.get(datatype, 64)):
        raise ValueError(f"{value} is not an {NAMES[datatype]}")
    setattr(metric, field, value)
