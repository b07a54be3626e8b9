"""``pulsebridge check`` against real servers, and against none."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from bridge.inspect.check import check_endpoints
from bridge.mqtt.device import DeviceClient
from bridge.settings import Settings
from bridge.settings.loading import load_with_origins
from pulsebridge.local.ports import free_ports
from pulsebridge.local.stack import LocalStack
from tests.support.stack import mqtt_settings
from tests.support.waiting import patient


def settings_of(stack: LocalStack, **changes: object) -> Settings:
    values: dict[str, object] = {
        "mqtt.host": stack.mqtt_host,
        "mqtt.port": stack.mqtt_port,
        "pulsar.service_url": stack.pulsar_url,
        "pulsar.admin_url": stack.admin_url,
    }
    return load_with_origins(
        overrides=values | {k.replace("__", "."): v for k, v in changes.items()}, environ={}
    ).settings


@pytest.mark.stack
def test_every_endpoint_answers(stack: LocalStack) -> None:
    findings = check_endpoints(settings_of(stack))
    assert [(f.name, f.ok) for f in findings] == [
        ("MQTT broker", True),
        ("Pulsar", True),
        ("Pulsar admin", True),
    ]


@pytest.mark.stack
def test_it_does_not_throw_out_the_running_worker(stack: LocalStack) -> None:
    mine = mqtt_settings(stack)
    with DeviceClient(mine, mine.client_id) as worker:
        assert all(f.ok for f in check_endpoints(settings_of(stack, mqtt__client_id=mine.client_id)))
        worker.publish("check/alive", b"")
        assert worker.flush()
        assert worker.connections == 1


@pytest.mark.stack
def test_it_leaves_no_topic_behind(stack: LocalStack) -> None:
    from bridge.pulsar.admin import PulsarAdmin
    from tests.support.stack import provisioned

    pulsar = provisioned(stack)
    settings = settings_of(stack, pulsar__namespace=pulsar.namespace, pulsar__system_namespace=pulsar.system_namespace)
    assert all(f.ok for f in check_endpoints(settings))
    with PulsarAdmin(pulsar) as admin:
        assert admin.topics(f"{pulsar.tenant}/{pulsar.namespace}") == []


def test_without_servers_each_endpoint_gets_its_remedy_and_the_exit_code_is_1() -> None:
    mqtt, pulsar, admin = free_ports(3)
    done = subprocess.run(
        [
            sys.executable, "-c", "from pulsebridge.cli.app import main; main()", "check", "--json",
            "--set", f"mqtt.port={mqtt}",
            "--set", f"pulsar.service_url=pulsar://127.0.0.1:{pulsar}",
            "--set", f"pulsar.admin_url=http://127.0.0.1:{admin}",
        ],
        capture_output=True, text=True, timeout=patient(120), check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    assert answer["ok"] is False
    assert [e["ok"] for e in answer["endpoints"]] == [False, False, False]
    assert all("pulsebridge up" in e["remedy"] for e in answer["endpoints"])
    assert answer["shadowed"] == []
