"""Builds SQL that reads times: ISO 8601 with a date, or numbers since the epoch.

``1700000000``, ``"1700000000.25"`` and ``1.7e9`` are valid times. Numbers are read exactly, to nine decimals, and
rounded down to µs. Times outside the years 1 to 9999 are invalid, because Python and many readers of the tables do not
know others. A time of day without a date is invalid as well. Spark would add the current date, which changes if the
batch is repeated. The session's time zone has no effect.
"""

from __future__ import annotations

from typing import Final

from bridge.settings.tables import TimeUnit
from streaming.sql import literal

__all__ = ["AUTO_BOUNDS", "MICROS", "as_timestamp", "in_known_zone", "words_for"]

AUTO_BOUNDS: Final = (("s", 10**11), ("ms", 10**14), ("us", 10**17))
"""``auto`` reads a number whose absolute value is below the bound in that unit, and others in ns. It reads seconds up
to the year 5138, and finer units from March 1973 on."""

_FACTORS: Final = {"s": "1000000BD", "ms": "1000BD", "us": "1BD", "ns": "0.001BD"}
"""Microseconds in a unit. The decimals have few digits, so the product is exact and cannot overflow."""
MICROS: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""First and last µs of the years 1 to 9999."""
_FIRST, _LAST = MICROS
_DATE: Final = r"r'^\s*\d{4}-\d{1,2}-\d{1,2}($|[^\d])'"
_LOCAL: Final = r"r'^\s*\d{4}-\d{1,2}-\d{1,2}([T ][0-9:.]+)?\s*$'"
_MINUTES: Final = r"r'([T ]\d{1,2}:\d{1,2})$'"
_ONLY_DATE: Final = 10
"""Most characters of a date."""
_WORDS: Final = {
    "iso": "an ISO 8601 time with a date; time_unit sets how numbers are read",
    "s": "a number of seconds since 1970 within the years 1 to 9999",
    "ms": "a number of milliseconds since 1970 within the years 1 to 9999",
    "us": "a number of microseconds since 1970 within the years 1 to 9999",
    "ns": "a number of nanoseconds since 1970 within the years 1 to 9999",
    "auto": "a number since 1970 or an ISO 8601 time with a date",
}


def in_known_zone(text: str, zone: str | None) -> str:
    """Return the text of a time, null for a local time without a declared ``zone``."""
    return text if zone is not None else f"CASE WHEN NOT {text} RLIKE {_LOCAL} THEN {text} END"


def as_timestamp(text: str, unit: TimeUnit, zone: str | None) -> str:
    """Return the time of a text column, null without one. ``zone`` applies to times without a zone."""
    number = f"try_cast({text} AS DECIMAL(30, 9))"
    if unit == "iso":
        return _iso(text, zone)
    if unit != "auto":
        return _within(_micros(number, unit))
    scaled = "".join(f"WHEN abs({number}) < {bound}BD THEN {_micros(number, name)} " for name, bound in AUTO_BOUNDS)
    micros = f"CASE WHEN {number} IS NULL THEN NULL {scaled}ELSE {_micros(number, 'ns')} END"
    return f"CASE WHEN {text} RLIKE {_DATE} THEN {_iso(text, zone)} ELSE {_within(micros)} END"


def words_for(text: str, unit: TimeUnit) -> str:
    """Return the reason why a text column contains no time."""
    return f"concat('the time ', left({text}, 60), {literal(f' is not {_WORDS[unit]}')})"


def _iso(text: str, zone: str | None) -> str:
    bare = f"trim({text})"
    # Spark accepts a zone only after seconds.
    midnight = f"CASE WHEN length({bare}) <= {_ONLY_DATE} THEN ' 00:00:00 ' ELSE ' ' END"
    seconds = f"regexp_replace({bare}, {_MINUTES}, '$1:00')"
    local = f"concat({seconds}, {midnight}, {literal(zone or 'UTC')})"
    whole = f"CASE WHEN {text} RLIKE {_LOCAL} THEN {local} ELSE {bare} END"
    time = f"try_cast({whole} AS TIMESTAMP_LTZ)"
    within = f"{time} BETWEEN timestamp_micros({_FIRST}) AND timestamp_micros({_LAST})"
    return f"CASE WHEN {text} RLIKE {_DATE} AND {within} THEN {time} END"


def _micros(number: str, unit: str) -> str:
    return f"try_cast(floor({number} * {_FACTORS[unit]}) AS BIGINT)"


def _within(micros: str) -> str:
    return f"CASE WHEN {micros} BETWEEN {_FIRST} AND {_LAST} THEN timestamp_micros({micros}) END"
