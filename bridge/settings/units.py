"""Values that have a unit, in settings and on the command line: durations like ``30s``, and sizes like ``64MiB``.

A bare number is refused, because its unit would be a guess; only 0 needs none. pydantic's ``ByteSize`` accepts bare
numbers, and has no counterpart for durations.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any, Final

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from bridge.errors import ConfigError

__all__ = ["Duration", "Size", "since_us"]

_QUANTITY: Final = re.compile(r"(\d+(?:\.\d+)?) ?([A-Za-z]*)", re.ASCII)
_SECONDS: Final = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600), "d": Decimal(86_400)}
_SECONDS_OF: Final = _SECONDS | {"min": _SECONDS["m"]}  # as Spark writes it
_BYTES: Final = {"B": 1, "KB": 10**3, "KiB": 2**10, "MB": 10**6, "MiB": 2**20, "GB": 10**9, "GiB": 2**30}
_BYTES_OF: Final = {name.lower(): Decimal(size) for name, size in _BYTES.items()}


class Duration(float):
    """A time in seconds. Settings have it as text with its unit: ``250ms``, ``30s``, ``5m``, ``12h``, ``7d``."""

    def __new__(cls, value: str | float, bare: str = "") -> Duration:
        """``value``: text with a unit, or seconds. Raises ValueError for other text.

        ``bare`` is the unit of a number alone; empty if a number needs a unit.
        """
        if isinstance(value, str):
            value = float(_amount(value, _SECONDS_OF, "a duration like 30s", ", ".join(_SECONDS), bare))
        return super().__new__(cls, value)

    @property
    def text(self) -> str:
        """The text of the duration, in the largest unit that gives a whole number."""
        for unit in ("d", "h", "m"):
            count, rest = divmod(self, float(_SECONDS[unit]))
            if count and not rest:
                return f"{count:.0f}{unit}"
        return f"{self * 1000:.12g}ms" if 0 < self < 1 else f"{self:.12g}s"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return _schema(cls)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "string", "pattern": rf"^\d+(\.\d+)? ?({'|'.join(_SECONDS)})$"}


class Size(int):
    """A number of bytes. Settings have it as text with its unit: ``500B``, ``10MB``, ``64MiB``, ``2GiB``."""

    def __new__(cls, value: str | int) -> Size:
        """``value``: text with a unit, or bytes. Raises ValueError for other text."""
        if isinstance(value, str):
            value = int(_amount(value.lower(), _BYTES_OF, "a size like 64MiB", ", ".join(_BYTES)))
        return super().__new__(cls, value)

    @property
    def text(self) -> str:
        """The shortest text of the size that is exact."""
        texts = [f"{self // size}{unit}" for unit, size in _BYTES.items() if not self % size]
        return min(reversed(texts), key=len) if self else "0B"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return _schema(cls)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "string", "pattern": rf"^\d+(\.\d+)? ?({'|'.join(_BYTES)})$"}


def since_us(text: str, now_us: int) -> int:
    """Read an age (``90s``, ``15m``, ``2h``, ``3d``) or an ISO time. Raises ConfigError."""
    with suppress(ValueError):
        return now_us - int(Duration(text) * 1_000_000)
    try:
        at = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    except ValueError as e:
        raise ConfigError(
            f"--since {text}: neither an age nor a time",
            remedy="for example --since 2h or 2026-01-31T12:00:00Z",
        ) from e
    return int((at if at.tzinfo else at.replace(tzinfo=timezone.utc)).timestamp() * 1_000_000)


def _amount(text: str, units: Mapping[str, Decimal], expected: str, names: str, bare: str = "") -> Decimal:
    """Return the number of a text times its unit. Raises ValueError with the way to write it."""
    found = _QUANTITY.fullmatch(text.strip())
    number, unit = (found[1], found[2] or bare) if found is not None else ("0", "?")
    if not unit and Decimal(number):
        raise ValueError(f"has no unit: write {expected} (units: {names})")
    if unit and unit not in units:
        raise ValueError(f"should be {expected} (units: {names})")
    return Decimal(number) * units.get(unit, 0)


def _schema(kind: type[Duration] | type[Size]) -> CoreSchema:
    def validated(value: object) -> Duration | Size:
        if isinstance(value, kind):
            return value
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(f"should be text with a unit, like {'30s' if kind is Duration else '64MiB'}")
        return kind(str(value))

    return core_schema.no_info_plain_validator_function(
        validated,
        serialization=core_schema.plain_serializer_function_ser_schema(
            lambda value: kind(value).text, return_schema=core_schema.str_schema(), when_used="json"
        ),
    )
