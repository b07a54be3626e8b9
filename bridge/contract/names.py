"""The limit of names: devices, keys, groups, client ids, metrics.

Names come from topics, payloads and rows, so a device may choose them. Each tier checks incoming names with
``Settings.max_name_bytes``. After this check a name is short enough for a key, a label or a part of a record.
"""

from __future__ import annotations

from typing import Final

__all__ = ["DEFAULT_MAX_NAME_BYTES", "MAX_NAME_BYTES", "name_problem"]

DEFAULT_MAX_NAME_BYTES: Final = 1024

MAX_NAME_BYTES: Final = 16_384
"""The maximum of the setting, so stored records have no longer names."""


def name_problem(name: str, limit: int = DEFAULT_MAX_NAME_BYTES) -> str | None:
    """Return why ``name`` is not a valid name, None if it is. ``limit`` is its maximum length in bytes of UTF-8.

    A lone surrogate is not valid, because no server accepts it (MQTT-1.5.4-1).
    """
    if not name:
        return "is empty"
    try:
        size = len(name) if name.isascii() else len(name.encode())
    except UnicodeEncodeError:
        return "is not valid UTF-8"
    if size > limit:
        return f"has {size} bytes, max_name_bytes is {limit}"
    return None
