"""Mosquitto with a password file and an access list: enough rights, one right less, and the error.

Its ``acl_file`` confirms every subscription and then holds back what may not be read, and before MQTT 5 it confirms
every publish: what the protocol cannot tell is found by what does not come.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.contract import COMMANDS_TOPIC
from bridge.errors import DeniedError
from bridge.ingest import moving
from bridge.mqtt.device import DeviceClient
from bridge.pulsar.admin import PulsarAdmin
from bridge.settings import IngestSettings, PulsarSettings, PushSettings, Settings
from bridge.settings.mqtt import MqttSettings
from pulsebridge.local.stack import LocalStack
from tests.support.certificates import HOST
from tests.support.ingest import remembered, running_ingest, stored, worker_of
from tests.support.secured import PASSWORD, mosquitto
from tests.support.secured_tiers import PLANT, pushing, write_command
from tests.support.stack import provisioned
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack

ACL = """\
user ingest
topic read plant/#
topic readwrite pulsebridge/moves/#

user reader
topic read plant/#

user device
topic write plant/#
"""


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    with mosquitto(tmp_path, users=("ingest", "reader", "device"), acl=ACL) as (port, _):
        yield port


def mqtt_of(port: int, user: str, **changes: Any) -> MqttSettings:
    values = {"host": HOST, "port": port, "username": user, "password": PASSWORD, "client_id": user}
    return MqttSettings(**(values | changes))


def settings_of(mqtt: MqttSettings, namespaces: PulsarSettings, **ingest: Any) -> Settings:
    return Settings(mqtt=mqtt, pulsar=namespaces, ingest=IngestSettings(**({"routes": (PLANT,)} | ingest)))


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
def test_a_subscription_that_mosquitto_does_not_serve_is_one_line(
    port: int, namespaces: PulsarSettings, protocol: str, capsys: pytest.CaptureFixture[str]
) -> None:
    denied = settings_of(mqtt_of(port, "device", protocol=protocol), namespaces, silence_warning="500ms")
    allowed = settings_of(mqtt_of(port, "ingest", protocol=protocol), namespaces, silence_warning="500ms")
    sender = mqtt_of(port, "device", client_id="sender")
    output = ""

    def warned() -> bool:
        nonlocal output
        output += capsys.readouterr().out
        return "no message has come" in output

    with DeviceClient(sender, "sender") as device:
        with running_ingest(denied):
            device.publish("plant/d1/t", b"held back")
            assert device.flush()
            poll_for(warned, 30, "the warning")
        output += capsys.readouterr().out
        (line,) = [line for line in output.splitlines() if "no message has come" in line]
        assert "warning" in line
        assert "mqtt.username 'device'" in line
        assert "plant/+/+" in line
        with running_ingest(allowed) as service:
            device.publish("plant/d1/t", b"served")
            poll_for(lambda: [m.payload for m in stored(namespaces, "plant")] == [b"served"], 30, "it")
            worker = worker_of(service)
            poll_for(lambda: worker._silence == float("inf"), 30, "the time of the warning to pass")
    assert "no message has come" not in capsys.readouterr().out


def test_h7_a_drain_that_may_not_publish_its_marker_says_which_right_it_needs(
    port: int, namespaces: PulsarSettings
) -> None:
    mqtt = mqtt_of(port, "reader")
    with running_ingest(settings_of(mqtt, namespaces)):
        poll_for(lambda: remembered(namespaces), 30, "the session to be remembered")
    other = settings_of(mqtt, namespaces, filters=("plant/d1/+",))
    with pytest.raises(DeniedError) as caught, running_ingest(other):
        pass
    assert "allow mqtt.username 'reader' to publish and to subscribe to pulsebridge/moves/#" in str(caught.value)
    with running_ingest(settings_of(mqtt_of(port, "ingest", client_id="reader"), namespaces, filters=("plant/d1/+",))):
        pass  # with that right the session is drained


def test_h7_a_marker_that_is_withheld_silently_is_reported(
    port: int, namespaces: PulsarSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """MQTT 3.1.1: the publish is confirmed, and nothing comes."""
    monkeypatch.setattr(moving, "_QUIET_S", 0.5)
    mqtt = mqtt_of(port, "reader", protocol="3.1.1")
    with running_ingest(settings_of(mqtt, namespaces)):
        poll_for(lambda: remembered(namespaces), 30, "the session to be remembered")
    output = ""

    def warned() -> bool:
        nonlocal output
        output += capsys.readouterr().out
        return "does not arrive" in output

    with running_ingest(settings_of(mqtt, namespaces, filters=("plant/d1/+",)), wait=False):
        poll_for(warned, 30, "the warning")
    assert "allow mqtt.username 'reader' to publish and to subscribe to pulsebridge/moves/#" in output


@pytest.mark.thorough
def test_push_that_mosquitto_does_not_let_publish_warns_and_retries(
    port: int, stack: LocalStack, capsys: pytest.CaptureFixture[str]
) -> None:
    namespaces = provisioned(stack, command_partitions=1)
    settings = Settings(
        mqtt=mqtt_of(port, "reader"),
        pulsar=namespaces,
        push=PushSettings(client_id=f"push-{uuid.uuid4().hex[:8]}", retry={"max_wait": "500ms"}),
    )
    output = ""

    def denied() -> bool:
        nonlocal output
        output += capsys.readouterr().out
        return "does not let us publish commands" in output

    commands = namespaces.system_topic(COMMANDS_TOPIC)
    with pushing(settings) as failures, PulsarAdmin(namespaces) as admin:
        poll_for(lambda: failures or admin.partition_count(commands), 60, "the commands topic")
        write_command(namespaces, "commands/d1")
        poll_for(lambda: failures or denied(), 60, "the warning")
        assert not failures
    assert "mqtt.username 'reader'" in output
