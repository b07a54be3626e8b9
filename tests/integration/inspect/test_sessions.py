"""MQTT sessions that a former layout has left: an error in ``pulsebridge status``, and the ways out of it (H7)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge.inspect.instances import look_at_instances
from bridge.pulsar.admin import PulsarAdmin
from bridge.settings import Settings
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.local.stack import LocalStack
from tests.support.ingest import device, ingest_settings, remembered, rule_for, running_ingest, stored
from tests.support.raw_mqtt import at_broker
from tests.support.stack import mqtt_settings
from tests.support.waiting import patient, poll_for

pytestmark = pytest.mark.stack


def status(settings: Settings, folder: Path, *options: str) -> tuple[int, str]:
    """Return exit code and output of ``pulsebridge status`` where no local servers are supervised."""
    config = folder / "status.yaml"
    body = settings.model_dump(mode="json", exclude_defaults=True)
    config.write_text(yaml.safe_dump(body), encoding="utf-8")
    command = [sys.executable, "-c", "from pulsebridge.cli.app import main; main()", "status", "-c", str(config)]
    done = subprocess.run(
        [*command, "--data-dir", str(folder / "none"), *options],
        capture_output=True, text=True, timeout=patient(120), check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, done.stdout


def await_running(settings: Settings, count: int) -> None:
    poll_for(
        lambda: [s for _, s in look_at_instances(settings).records] == ["running"] * count,
        30,
        f"{count} processes that advertise themselves",
    )


def test_h7_a_session_that_no_worker_serves_is_an_error_in_status_until_it_is_drained(
    broker: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    mqtt = mqtt_settings(broker, protocol="3.1.1")
    old, new = mqtt.client_id, f"{mqtt.client_id}-renamed"
    before = ingest_settings(mqtt, namespaces, routes=(rule_for(old),), status_interval="5s", resume_topic=None)
    with running_ingest(before):
        poll_for(lambda: set(remembered(namespaces)) == {old}, 30, "the session to be remembered")
    renamed = before.model_copy(update={"mqtt": mqtt.model_copy(update={"client_id": new})})
    with running_ingest(renamed):
        poll_for(lambda: set(remembered(namespaces)) == {old, new}, 30, "the second session")
        await_running(renamed, 1)
        with device(mqtt, "dev") as dev:
            dev.publish(f"{old}/press/heat", b"x")
            assert dev.flush()
        code, text = status(renamed, tmp_path, "--json")
        report: dict[str, Any] = json.loads(text)
        (one,) = report["unserved_sessions"]
        assert (code, one["client_id"], one["broker"]) == (1, old, mqtt.address)
        assert one["filters"] == [f"{old}/+/+"]
        code, text = status(renamed, tmp_path)
        assert f"the MQTT session '{old}' at {mqtt.address} ({old}/+/+) queues messages that no process reads" in text
        assert f"list '{old}' in mqtt.former_client_ids" in text
        with running_ingest(before):
            await_running(renamed, 2)
            code, text = status(renamed, tmp_path, "--json")
            assert (code, json.loads(text)["unserved_sessions"]) == (0, [])
    with device(mqtt, "dev") as dev:
        dev.publish(f"{old}/press/heat", b"y")
        assert dev.flush()
    takes_over = renamed.mqtt.model_copy(update={"former_client_ids": (old,)})
    with running_ingest(renamed.model_copy(update={"mqtt": takes_over})):
        assert set(remembered(namespaces)) == {new}
        # Each of the two sessions had both messages.
        poll_for(lambda: len(stored(namespaces, "fleet")) == 4, 30, "both copies of both messages")
        await_running(renamed, 1)
        code, text = status(renamed, tmp_path, "--json")
        assert (code, json.loads(text)["unserved_sessions"]) == (0, [])
    assert sorted(m.payload for m in stored(namespaces, "fleet")) == [b"x", b"x", b"y", b"y"]
    assert not at_broker(mqtt, old)
    assert at_broker(mqtt, new)


def test_h7_what_keeps_a_session_whose_broker_is_gone_can_be_removed(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    """The property that the remedy names is the one that is kept."""
    mqtt = mqtt_settings(stack)
    settings = ingest_settings(mqtt, namespaces, routes=(rule_for(mqtt.client_id),))
    with running_ingest(settings):
        poll_for(lambda: remembered(namespaces), 30, "the session to be remembered")
    other = settings.model_copy(update={"mqtt": mqtt.model_copy(update={"client_id": "other"})})
    code, text = status(other, tmp_path, "--json")
    (one,) = json.loads(text)["unserved_sessions"]
    assert code == 1
    key, topic = one["remedy"].split("remove-properties --key ")[1].split()
    with PulsarAdmin(namespaces) as admin:
        place = topic.replace("persistent://", "/persistent/")
        assert list(admin.request("GET", f"{place}/properties")).count(key) == 1
        admin.request("DELETE", f"{place}/properties?key={key}")
    assert json.loads(status(other, tmp_path, "--json")[1])["unserved_sessions"] == []
