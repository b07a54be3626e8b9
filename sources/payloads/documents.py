"""Writes values as JSON, with bounds on length, depth and number of values.

The values come from CBOR, protobuf or a Python function. Bytes become base64, times ISO 8601, decimals their digits
in text. A number that JSON lacks (NaN, infinity) becomes null. An unknown tag is replaced by its value.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date, datetime, timezone
from typing import Any, Final

from sources.payloads.limits import MAX_DIGITS

__all__ = ["json_of"]

_BITS: Final = MAX_DIGITS * 3322 // 1000


def json_of(value: object, limit: int, *, max_depth: int = 64, max_values: int = 100_000) -> str:
    """Return the value as JSON.

    Raises ValueError, which names the limit, if that has more than ``limit`` bytes of UTF-8, more levels, or more
    values. The bounds apply during the conversion, because shared references let a small CBOR payload expand endlessly.
    """
    plain = _Plain(limit, max_depth, max_values).of(value, 0)
    text = json.dumps(plain, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    if len(text) * 4 > limit and len(text.encode()) > limit:
        raise _beyond(limit)
    return text


class _Plain:
    """Converts values to JSON types and counts its output."""

    def __init__(self, limit: int, max_depth: int, max_values: int) -> None:
        self._limit = limit
        self._max_depth = max_depth
        self._max_values = max_values
        self._values = 0
        self._made = 0

    def of(self, value: Any, depth: int) -> Any:
        """Return the value in JSON types."""
        if depth > self._max_depth:
            raise ValueError(f"nested deeper than max_depth, {self._max_depth}")
        self._values += 1
        if self._values > self._max_values:
            raise ValueError(f"makes more values than max_values, {self._max_values}")
        self._count(1)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return self._integer(value)
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, (bytes, bytearray, memoryview)):
            self._check(len(value))
            return self._text(base64.b64encode(value).decode())
        if isinstance(value, Mapping):
            return self._object(value, depth)
        if isinstance(value, (Sequence, AbstractSet)):
            return [self.of(one, depth + 1) for one in value]
        return self._other(value, depth)

    def _other(self, value: Any, depth: int) -> Any:
        if isinstance(value, (datetime, date)):
            return self._text(_time(value))
        if type(value).__name__ == "undefined_type":
            return None
        if type(value).__name__ in ("CBORTag", "CBORSimpleValue"):
            return self.of(value.value, depth + 1)
        return self._text(str(value))

    def _object(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, one in value.items():
            name = self._text(key if isinstance(key, str) else str(self.of(key, depth + 1)))
            if name in found:
                raise ValueError(f"two fields are named {name[:40]!r}")
            found[name] = self.of(one, depth + 1)
        return found

    def _integer(self, value: int) -> int | str:
        # Spark cannot read larger ones as numbers; Python refuses to print them beyond 4,300 digits.
        if value.bit_length() > _BITS:
            raise ValueError(f"a number of more than {MAX_DIGITS} digits")
        return int(value) if value.bit_length() <= 120 else self._text(hex(value))

    def _text(self, text: str) -> str:
        self._check(len(text))
        if text.isascii():
            self._count(len(text))
            return text
        encoded = text.encode("utf-8", "replace")
        self._count(len(encoded))
        return encoded.decode()

    def _count(self, made: int) -> None:
        self._made += made
        self._check(0)

    def _check(self, more: int) -> None:
        if self._made + more > self._limit:
            raise _beyond(self._limit)


def _beyond(limit: int) -> ValueError:
    return ValueError(f"makes a document larger than max_size, {limit}")


def _time(value: date) -> str:
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(timezone.utc)
    return value.isoformat()
