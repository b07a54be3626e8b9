"""Reads stored records: any bytes result in a record or a ContractError.

Other writers may have access to a topic of ours, and an older release reads records of a later one. So each decoder of
a record is a function with ``@decodes``. It reads numbers and positions with the functions below, so that each accepted
number fits into its later storage.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from math import isfinite
from typing import Any, Final, NoReturn, ParamSpec, TypeVar

from bridge.errors import ContractError

__all__ = [
    "LAST_US",
    "MAX_RECORD_BYTES",
    "checked_fields",
    "checked_position",
    "checked_text",
    "checked_whole",
    "checked_wholes",
    "decodes",
    "json_of_record",
    "json_record",
]

P = ParamSpec("P")
T = TypeVar("T")

MAX_RECORD_BYTES: Final = 8 * 1024 * 1024
"""Maximum bytes of a record: Pulsar's default maxMessageSize is 5 MiB, and our writers do not send records in chunks.
"""
LAST_US: Final = 253_402_300_799_999_999
"""The end of the year 9999, Python's last time, in µs since the epoch."""
_INT64: Final = 2**63
_INT32: Final = 2**31
_SHOWN: Final = 200


def decodes(what: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Make a decoder that raises ContractError only; ``what`` names the record in its text.

    This includes MemoryError, because a few bytes may request all memory.
    """

    def decorate(decode: Callable[P, T]) -> Callable[P, T]:
        @wraps(decode)
        def decoded(*args: P.args, **more: P.kwargs) -> T:
            try:
                return decode(*args, **more)
            except ContractError:
                raise
            except Exception as e:  # the bytes may be anything, and libraries do not document their errors
                raise ContractError(f"not {what}: {type(e).__name__}: {e}"[:_SHOWN]) from e

        return decoded

    return decorate


def json_of_record(data: bytes | str) -> Any:
    """Return the value of JSON. Raises ValueError, also for NaN, infinity and more than ``MAX_RECORD_BYTES``."""
    if len(data) > MAX_RECORD_BYTES:
        raise ValueError(f"{len(data)} bytes, a record has at most {MAX_RECORD_BYTES}")
    return json.loads(data, parse_constant=_no_number)


def json_record(data: bytes | str, what: str, versions: Sequence[object]) -> dict[str, Any]:
    """Return a JSON object whose field ``v`` is one of ``versions``. Raises ContractError or ValueError."""
    body = json_of_record(data)
    if not isinstance(body, dict):
        raise ValueError("not a JSON object")
    version = body.get("v")
    if isinstance(version, bool) or version not in versions:
        raise ContractError(f"{what} has version {version!r:.40}, this reads up to {versions[-1]!r}")
    return body


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a valid number in JSON")


def checked_whole(value: object, least: int = -_INT64, most: int = _INT64 - 1) -> int:
    """Return a whole number within bounds, by default those of 64 bits. Raises ValueError."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{value!r:.40} is not a whole number from {least} to {most}")
    return value


def checked_wholes(values: object, together: int = 1) -> list[int]:
    """Return a list of whole numbers of 64 bits, in groups of ``together``. Raises ValueError."""
    if not isinstance(values, list) or len(values) % together:
        raise ValueError(f"not a list of numbers in groups of {together}")
    return [checked_whole(value) for value in values]


def checked_text(value: object) -> str:
    """Return a text that is valid UTF-8. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.40} is not text")
    value.encode()
    return value


def checked_position(values: object) -> tuple[int, int, int]:
    """Return a position of Pulsar: ledger, entry and index in the batch. Raises ValueError."""
    if not isinstance(values, (list, tuple)) or len(values) != 3:
        raise ValueError(f"{values!r:.40} is not a position")
    ledger, entry, index = values
    return checked_whole(ledger), checked_whole(entry), checked_whole(index, -_INT32, _INT32 - 1)


def checked_fields(values: Mapping[str, Any], kinds: Mapping[str, object]) -> dict[str, Any]:
    """Return the present fields of ``kinds``. Raises ValueError for a value of another type.

    ``kinds`` has the type of each field, as text of an annotation: ``str``, ``int``, ``bool`` or ``float``.
    """
    found: dict[str, Any] = {}
    for name, kind in kinds.items():
        if name not in values:
            continue
        value = values[name]
        if kind == "int":
            value = checked_whole(value)
        elif kind == "str":
            value = checked_text(value)
        elif kind == "float":
            if type(value) not in (int, float) or not isfinite(value):  # JSON's 1e999 is infinity
                raise ValueError(f"{name} is {value!r:.40}, not a number")
            value = float(value)
        elif kind == "bool" and type(value) is not bool:
            raise ValueError(f"{name} is {value!r:.40}, not true or false")
        found[name] = value
    return found
