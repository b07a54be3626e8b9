"""Ingest killed while devices publish over HTTP: what was answered 200 is in Pulsar, in order for each device."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.pulsar.admin import PulsarAdmin
from pulsebridge.local.ports import free_ports
from pulsebridge.local.stack import LocalStack
from tests.support.http_fleet import HttpFleet, ingest_of
from tests.support.ingest import stored
from tests.support.kill_points import HTTP_KILL_POINTS
from tests.support.stack import provisioned
from tests.support.waiting import poll_for

pytestmark = [pytest.mark.stack, pytest.mark.chaos]


@pytest.mark.parametrize("point", HTTP_KILL_POINTS)
def test_killed_at_each_point_nothing_that_was_answered_is_missing(
    point: str, stack: LocalStack, tmp_path: Path
) -> None:
    pulsar = provisioned(stack, partitions=1)
    with PulsarAdmin(pulsar, timeout_s=30) as admin:
        admin.create_partitioned(pulsar.readings_topic("fleet"), 1)
    (port,) = free_ports(1)
    fleet = HttpFleet(port, devices=4, count=60)
    try:
        for _kill in range(3):
            with ingest_of(port, pulsar, tmp_path, {"PULSEBRIDGE_KILL_AT": f"{point}:40"}) as process:
                poll_for(lambda process=process: process.poll() is not None, 60, "the kill")  # type: ignore[misc]
                assert process.returncode == -9, (tmp_path / "log").read_text()
        with ingest_of(port, pulsar, tmp_path):
            poll_for(lambda: fleet.total == 240, 60, "every answer")
    finally:
        fleet.stop()
    seen: dict[str, list[int]] = {}
    for message in stored(pulsar, "fleet"):
        numbers = seen.setdefault(message.key, [])
        if int(message.payload) not in numbers:
            numbers.append(int(message.payload))
    assert seen == {f"d{n}": list(range(60)) for n in range(4)}
