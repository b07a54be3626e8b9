"""Reads the times that readings carry: ISO 8601 with a date, or numbers since the epoch in a unit.

Pure Spark SQL on text, since every form gives its fields as text or numbers of any type: ``1700000000``,
``"1700000000.25"`` and ``1.7e9`` are one time. Numbers are read exactly, to nine places after the point, and rounded
down to µs. What is no time of the years 1 to 9999 is none: Python, and many a reader of the tables, knows no others.
A time of day without a date is none either: Spark would take today's, and another day when a batch runs again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["AUTO_BOUNDS", "MICROS", "TimeUnit", "as_timestamp", "words_for"]

TimeUnit = Literal["iso", "s", "ms", "us", "ns", "auto"]

AUTO_BOUNDS: Final = (("s", 10**11), ("ms", 10**14), ("us", 10**17))
"""``auto`` takes a number whose absolute value is below the bound to be of the unit, others to be ns: seconds as far as
the year 5138, and anything finer from March 1973 on."""

_FACTORS: Final = {"s": "1000000BD", "ms": "1000BD", "us": "1BD", "ns": "0.001BD"}
"""Microseconds in a unit. Decimals with few digits: the product is exact and cannot overflow."""
_NUMBER: Final = "DECIMAL(30, 9)"
MICROS: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""The years 1 to 9999, in µs: first and last."""
_FIRST, _LAST = MICROS
_DATE: Final = r"^\\s*\\d{4}-\\d{1,2}-\\d{1,2}($|[^\\d])"
_WORDS: Final = {
    "iso": "ISO 8601 time with a date; time_unit says how numbers are read",
    "s": "number of seconds since 1970 within the years 1 to 9999",
    "ms": "number of milliseconds since 1970 within the years 1 to 9999",
    "us": "number of microseconds since 1970 within the years 1 to 9999",
    "ns": "number of nanoseconds since 1970 within the years 1 to 9999",
    "auto": "number since 1970, nor an ISO 8601 time with a date",
}


def as_timestamp(text: str, unit: TimeUnit) -> Column:
    """Return the time that a column of text says, null where it says none."""
    from pyspark.sql import functions as F

    if unit == "iso":
        return F.expr(_iso(text))
    if unit != "auto":
        return F.expr(_since_epoch(f"{_number(text)} * {_FACTORS[unit]}"))
    number = _number(text)
    scaled = "".join(
        f"WHEN abs({number}) < {bound}BD THEN {_micros(f'{number} * {_FACTORS[name]}')} "
        for name, bound in AUTO_BOUNDS
    )
    last = _micros(f"{number} * {_FACTORS['ns']}")
    micros = f"CASE WHEN {number} IS NULL THEN NULL {scaled} ELSE {last} END"
    return F.expr(f"coalesce({_within(micros)}, {_iso(text)})")


def words_for(text: str, unit: TimeUnit) -> Column:
    """Return why a column of text says no time, in words."""
    from pyspark.sql import functions as F

    return F.concat(F.lit("the time "), F.left(F.col(text), F.lit(60)), F.lit(f" is no {_WORDS[unit]}"))


def _iso(text: str) -> str:
    # try_to_timestamp gives a timestamp in the session's zone, which is UTC
    time = f"CAST(try_to_timestamp(`{text}`) AS TIMESTAMP)"
    within = f"{time} BETWEEN timestamp_micros({_FIRST}) AND timestamp_micros({_LAST})"
    return f"CASE WHEN `{text}` RLIKE '{_DATE}' AND {within} THEN {time} END"


def _number(text: str) -> str:
    return f"try_cast(`{text}` AS {_NUMBER})"


def _since_epoch(micros: str) -> str:
    return _within(_micros(micros))


def _micros(scaled: str) -> str:
    return f"try_cast(floor({scaled}) AS BIGINT)"


def _within(micros: str) -> str:
    return f"CASE WHEN {micros} BETWEEN {_FIRST} AND {_LAST} THEN timestamp_micros({micros}) END"
