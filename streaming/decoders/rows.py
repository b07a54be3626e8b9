"""What the rows of every table have: device, captures, id and position. SQL as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from bridge.settings.tables import Decoding
from bridge.topic_templates import Filter
from streaming.decoders.sql import by_number, captured
from streaming.decoders.times import as_timestamp, words_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["ARRIVAL", "POSITION", "captures", "device", "message_columns", "row_id", "time_columns"]

POSITION: Final = (
    "named_struct('topic', __topic, 'partition', partition, 'ledger', ledger_id, 'entry', entry_id, "
    "'index', batch_index, 'element', _element)"
)
ARRIVAL: Final = "arrival_time, __publishTime"


def message_columns(rows: DataFrame) -> list[str]:
    """Return the source's columns; what begins with one underscore is added on the way."""
    return [name for name in rows.columns if not name.startswith("_") or name.startswith("__")]


def captures(message: Sequence[str], decodings: Sequence[Decoding]) -> dict[str, str]:
    """Return the captures of the filters that are columns: those that no column of the message is called like."""
    filters = [Filter.parse(one.filter) for one in decodings]
    taken = {name.lower() for name in message}
    names = [n for of in filters for n in of.names if n is not None and n.lower() not in taken]
    none = "CAST(NULL AS STRING)"
    return {
        name: by_number([captured(of, name) if name in of.names else none for of in filters])
        for name in dict.fromkeys(names)
    }


def device(decodings: Sequence[Decoding], fallback: str = "CAST(NULL AS STRING)") -> str:
    """Return the message's device, else what the filter captures as one."""
    filters = [Filter.parse(one.filter) for one in decodings]
    found = by_number([captured(of, "device") if "device" in of.names else fallback for of in filters])
    return f"coalesce(device, {found}, {fallback})"


def row_id(given: str, shared: str) -> str:
    """Return the id of a row: ``given`` by its payload, with the element where it is that of a whole message."""
    element = "concat('#', CAST(_element AS STRING))"
    place = f"concat_ws(':', ledger_id, entry_id, batch_index), {element}"
    own = f"concat({given}, CASE WHEN {shared} THEN {element} ELSE '' END)"
    return f"coalesce({own}, concat({place}))"


def time_columns(decodings: Sequence[Decoding]) -> tuple[str, str]:
    """Return the time that the text ``_time`` says, and what is wrong with it where that, as ``_read``, is null."""
    times = by_number([as_timestamp("_time", one.time_unit, one.time_zone) for one in decodings])
    words = by_number([words_for("_time", one.time_unit) for one in decodings])
    return times, f"CASE WHEN _read IS NULL AND _time IS NOT NULL THEN {words} END"
