"""Dead letters as ingest writes them."""

from __future__ import annotations

from typing import Any, Final

import pulsar

from bridge import contract
from bridge.contract.partitioning import partition_of
from bridge.dead_letters import dead_letter
from bridge.mqtt.envelope import Envelope
from bridge.pulsar.admin import PulsarAdmin
from bridge.routing.mapper import Route
from bridge.settings.pulsar import PulsarSettings
from tests.support.reading_back import quiet

__all__ = ["MEGABYTE", "write_dead"]

MEGABYTE: Final = 1024 * 1024


def write_dead(settings: PulsarSettings, letters: list[tuple[str, bytes]], **changes: Any) -> None:
    """Write dead letters as ingest does, unbatched and chunked; each is a device and a payload."""
    dead_topic = settings.system_topic(contract.DEAD_LETTERS_TOPIC)
    with PulsarAdmin(settings, timeout_s=30) as admin:
        count = admin.create_partitioned(dead_topic, settings.command_partitions)
    client = pulsar.Client(settings.service_url, logger=quiet())
    producers: dict[int, pulsar.Producer] = {}
    for device, payload in letters:
        route = Route("fleet", "fleet", device, device, None)
        fields = {
            "topic": settings.readings_topic("fleet"),
            "device": device,
            "reason": "the topic is terminated",
            "at_us": 1_700_000_000_000_000,
            "properties": Envelope(link="l", protocol="5", mark=True).of_topic(f"fleet/{device}/glucose", route),
            "key": f"key of {device}",
            "whole_bytes": 32 * MEGABYTE,
        }
        kept, properties = dead_letter(payload, **(fields | changes))
        partition = partition_of(device, count)
        if partition not in producers:
            producers[partition] = client.create_producer(
                contract.partition_name(dead_topic, partition), batching_enabled=False, chunking_enabled=True
            )
        producers[partition].send(kept, properties=properties, partition_key=device, event_timestamp=77)
    client.close()
