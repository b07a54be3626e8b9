"""``active_connections`` of an MQTT broker: its own number, at each source that the documentation names."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import structlog
from pydantic import SecretStr

from bridge.mqtt.connection_count import ConnectionCount, mop_collector
from bridge.mqtt.device import DeviceClient
from bridge.settings.mqtt import MqttSettings
from bridge.user_folders import default_cache_dir
from pulsebridge.downloads import distributions
from pulsebridge.local.ports import free_ports
from pulsebridge.local.processes import Server
from tests.brokers.servers import BROKERS, end, newest
from tests.support.ivy_jars import java_home
from tests.support.rabbitmq import installed, start_rabbitmq
from tests.support.secured import mosquitto
from tests.support.waiting import poll_for

Start = Callable[[Path, Sequence[int]], tuple[list[Server], str]]
"""Start a broker in a folder, with free ports, the first for MQTT; return it and the source of its number."""


def shown(collector: object) -> dict[str, float]:
    connections, _ = collector.collect()  # type: ignore[attr-defined]
    return {sample.labels["client_address"]: sample.value for sample in connections.samples}


def test_the_number_is_the_brokers_own_and_follows_its_clients(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    mqtt = MqttSettings(port=port, reconnect_max="500ms")
    address = f"127.0.0.1:{port}"
    with mosquitto(tmp_path, port=port), mop_collector([mqtt], lambda: False) as collector:
        poll_for(lambda: shown(collector) == {address: 1}, 60, "its own connection")
        with DeviceClient(mqtt, "a"), DeviceClient(mqtt, "b"):
            poll_for(lambda: shown(collector) == {address: 3}, 60, "both devices")
        poll_for(lambda: shown(collector) == {address: 1}, 60, "none of them")


def test_a_broker_that_does_not_allow_it_has_no_number(tmp_path: Path) -> None:
    with mosquitto(tmp_path, acl="topic readwrite plant/#\n") as (port, _), structlog.testing.capture_logs() as logs:
        now = 0.0
        count = ConnectionCount(MqttSettings(port=port), lambda: now)
        try:
            count.look()  # Mosquitto confirms a subscription that it does not serve
            assert logs == []
            now = 61.0
            count.look()
        finally:
            count.close()
        assert count.value is None
        (event,) = logs
        assert "mqtt.connections_from" in event["event"]
        assert "$SYS/broker/clients/connected" in event["why"]


def artemis(folder: Path, ports: Sequence[int]) -> tuple[list[Server], str]:
    """Its defaults with a web console, which ``pulsebridge up`` leaves out."""
    (home,) = distributions.ensure([distributions.ARTEMIS], cache=default_cache_dir(), java=java_home())
    others = ("--no-amqp-acceptor", "--no-hornetq-acceptor", "--no-stomp-acceptor", "--no-autotune")
    identity = ("--allow-anonymous", "--user=admin", "--password=secret", "--name=plant")
    command = [f"{home}/bin/artemis", "create", "broker", "--silent", f"--http-port={ports[1]}", *others, *identity]
    environment = os.environ | {"JAVA_HOME": str(java_home())}
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    file = folder / "broker/etc/broker.xml"
    file.write_text(file.read_text(encoding="utf-8").replace(":1883?", f":{ports[0]}?"), encoding="utf-8")
    run = [str(folder / "broker/bin/artemis"), "run"]
    server = Server("artemis", run, log=folder / "log", cwd=folder, environment=environment, grace_s=20)
    path = "console/jolokia/read/org.apache.activemq.artemis:broker=%22plant%22/ConnectionCount#value"
    return [server], f"http://admin:secret@localhost:{ports[1]}/{path}"


def rabbitmq(folder: Path, ports: Sequence[int]) -> tuple[list[Server], str]:
    if not installed():
        pytest.skip("RabbitMQ is not installed")
    lines = ("mqtt.allow_anonymous = true", f"prometheus.tcp.port = {ports[3]}")
    servers = start_rabbitmq(folder, ports[:3], lines, "rabbitmq_mqtt,rabbitmq_prometheus")
    return servers, f"http://127.0.0.1:{ports[3]}/metrics#rabbitmq_connections"


def nats(folder: Path, ports: Sequence[int]) -> tuple[list[Server], str]:
    if BROKERS["nats"].version() is None:
        pytest.skip("NATS is not installed")
    return BROKERS["nats"].start(folder, ports), f"http://127.0.0.1:{ports[2]}/varz#connections"


@pytest.mark.long
@pytest.mark.parametrize("start", [artemis, rabbitmq, nats])
def test_a_url_has_the_number_of_other_brokers(start: Start, tmp_path: Path) -> None:
    ports = free_ports(4)
    servers, where = start(tmp_path, ports)
    try:
        poll_for(lambda: newest(ports[0]) is not None, 180, "the broker", every=0.5)
        mqtt = MqttSettings(port=ports[0], protocol="3.1.1", connections_from=SecretStr(where))
        count = ConnectionCount(mqtt)

        def number() -> float | None:
            count.look()
            return count.value

        poll_for(lambda: number() == 0, 60, "no device")
        with DeviceClient(mqtt, "a"), DeviceClient(mqtt, "b"):
            poll_for(lambda: number() == 2, 60, "both devices")
        poll_for(lambda: number() == 0, 60, "none of them")
    finally:
        end(servers, kill=True)
