"""A command to a group of ten thousand: how often its payload is read, and what it costs in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.settings import MetricsSettings, PulsarSettings
from pulsebridge.local.ports import free_ports
from pulsebridge.local.stack import LocalStack
from tests.support.endpoint import Endpoint
from tests.support.groups import group_command, write_group_commands, write_members
from tests.support.memory import peak_memory
from tests.support.push import PushProcess, provision, push_settings
from tests.support.stack import mqtt_settings
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack

MEMBERS = 10_000
PAYLOAD = 32 * 1024


@pytest.mark.long
def test_a_command_to_ten_thousand_is_read_once_and_costs_index_entries_not_payloads(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    settings = push_settings(
        namespaces, mqtt_settings(stack), command_partitions=4, limits={"window_size": "1MiB"}
    ).model_copy(update={"metrics": MetricsSettings(port=free_ports(1)[0], probe_interval="500ms")})
    provision(settings)
    write_members(settings, "fleet", [f"d{n:05}" for n in range(MEMBERS)])
    small = group_command(settings, 1, "fleet")
    large = group_command(settings, 2, "fleet")
    large = type(large)(large.command_id, large.group, large.mqtt_topic, bytes(PAYLOAD))
    with PushProcess(settings, tmp_path).owns(4) as process:
        endpoint = Endpoint(settings.metrics.port)

        def delivered() -> float:
            name, labels = "pulsebridge_push_receipts_total", {"state": "delivered"}
            return sum(s.value for s in endpoint.samples() if s.name == name and s.labels == labels)

        def misses() -> float:
            return endpoint.value("pulsebridge_push_cache_misses_total")

        # No device subscribes, and Artemis accepts all of it: the bench measures push alone.
        write_group_commands(settings, [small])
        poll_for(lambda: delivered() == MEMBERS, 120, "the first one at all members")
        before = peak_memory(process.pid)
        write_group_commands(settings, [large])
        poll_for(lambda: delivered() == 2 * MEMBERS, 120, "the second one at all members")
        grown = peak_memory(process.pid) - before
        assert misses() == 2, "each payload is read once in this process"
        assert endpoint.value("pulsebridge_push_cache_hits_total") == 2 * MEMBERS - 2
        assert endpoint.value("pulsebridge_push_group_entries_total") == 2 * MEMBERS
    print(f"peak memory {before / 1e6:.0f} MB, and {grown / 1e6:.1f} MB more for {MEMBERS * PAYLOAD / 1e6:.0f} MB")
    assert grown < MEMBERS * PAYLOAD / 4, "payloads are not held for each member"
