"""``pulsebridge status --trace`` shows the way of a publish to the broker that owns its partition, and into Pulsar."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bridge.settings.pulsar import PulsarSettings
from pulsebridge.local.stack import LocalStack
from tests.support.ingest import device, ingest_settings, publish_ids, rule_for, running_ingest, wait_for
from tests.support.stack import mqtt_settings
from tests.support.status import status

pytestmark = pytest.mark.stack


def test_connect_lookup_owner_and_transfer_of_one_publish(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    mqtt = mqtt_settings(stack)
    settings = ingest_settings(mqtt, namespaces, routes=(rule_for(mqtt.client_id),))
    topic = f"{mqtt.client_id}/d1/temperature"
    early = status(settings, tmp_path, "--trace", topic)
    assert early.exit_code == 1
    assert "its first message creates it" in early.output
    with running_ingest(settings), device(mqtt, "d") as dev:
        publish_ids(dev, [topic], 1, [])
        wait_for(namespaces, 1)
        done = status(settings, tmp_path, "--trace", topic, "--payload", "21.5", "--json")
        assert done.exit_code == 0, done.output
        steps: list[dict[str, Any]] = json.loads(done.stdout)
        names = [step["name"] for step in steps]
        assert names == ["topic", "connect", "lookup", "owner", "connect", "acknowledged", "transfer"]
        place = namespaces.service_url.removeprefix("pulsar://")
        assert steps[3]["what"] == place
        assert "fleet-partition-" in steps[0]["what"]
        assert f"the owner is pulsar://{place}" in steps[2]["what"]
        assert sum(one.payload == b"21.5" for one in wait_for(namespaces, 2)) == 1
    shown = status(settings, tmp_path, "--trace", f"{mqtt.client_id}-commands/d1")
    assert shown.exit_code == 1
