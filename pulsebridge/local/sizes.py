"""Memory sizes of the local JVMs, from the memory of the machine."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Sizes", "sizes_for"]

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes in MiB: Pulsar's heap and direct memory, its caches within the latter, and Artemis's heap."""

    pulsar_heap: int
    pulsar_direct: int
    pulsar_write_cache: int
    pulsar_read_cache: int
    pulsar_entry_cache: int
    mqtt_heap: int


def sizes_for(total_bytes: int, mqtt_heap: int = 0) -> Sizes:
    """Return the sizes for a machine of ``total_bytes`` (0: unknown, counts as 8 GiB); ``mqtt_heap`` overrides, in MiB.

    Pulsar's heap and its direct memory are a sixteenth of the memory each, Artemis's heap is half of that. With 8 GiB
    they use 1.25 GiB in all; the rest is for Spark and the user. Above 12 GiB the sizes are constant.
    """
    total = (total_bytes or 8 * 1024 * _MIB) // _MIB
    heap = min(768, max(384, total // 16))
    direct = min(768, max(384, total // 16))
    return Sizes(
        pulsar_heap=heap,
        pulsar_direct=direct,
        pulsar_write_cache=direct // 8,
        pulsar_read_cache=direct // 16,
        pulsar_entry_cache=direct // 5,
        mqtt_heap=mqtt_heap or min(512, max(256, total // 32)),
    )
