"""``pulsebridge check`` against real servers, and against none."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import trustme

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


def test_both_ports_of_http_are_tried_with_their_certificate(tmp_path: Path) -> None:
    plain, secure, mqtt = free_ports(3)
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    issued = trustme.CA().issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(str(key))
    issued.cert_chain_pems[0].write_to_path(str(certificate))
    values = {
        "messaging_protocols": "http", "http.port": plain, "http.tls_port": secure, "http.tls_certificate": str(certificate),
        "http.tls_private_key": str(key), "mqtt.port": mqtt, "pulsar.provision": "off", "pulsar.service_url": f"pulsar://127.0.0.1:{mqtt}",
    }  # fmt: skip
    settings = load_with_origins(overrides=values, environ={}).settings

    def listeners() -> list[tuple[str, bool, str]]:
        return [(f.name, f.ok, f.detail) for f in check_endpoints(settings) if f.name in ("HTTP", "HTTPS")]

    with socket.create_server(("127.0.0.1", plain)):
        assert listeners() == [
            ("HTTP", True, "the port is in use, as while ingest runs"),
            ("HTTPS", True, "ingest can listen, the certificate is valid"),
        ]
    key.write_text("not a key")
    (found,) = (one for one in check_endpoints(settings) if one.name == "HTTPS")
    assert (found.ok, "readable PEM files" in found.remedy) == (False, True)


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
    # a port that wants TLS resets a connection without it, and one without TLS ends a handshake
    assert "mqtt.tls" in answer["endpoints"][0]["remedy"]
    assert answer["shadowed"] == []
