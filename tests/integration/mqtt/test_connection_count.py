"""``active_connections`` of an MQTT broker: the number that Mosquitto reports, also after its restart."""

from __future__ import annotations

from pathlib import Path

import structlog

from bridge.mqtt.connection_count import ConnectionCount, mop_collector
from bridge.mqtt.device import DeviceClient
from bridge.settings.mqtt import MqttSettings
from pulsebridge.local.ports import free_ports
from tests.support.secured import mosquitto
from tests.support.waiting import poll_for


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
