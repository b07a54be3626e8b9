"""The health of a push process as owner, without its servers, and on standby."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bridge.settings import MetricsSettings, PulsarSettings, Settings
from pulsebridge.local.ports import free_ports
from pulsebridge.local.stack import LocalStack
from tests.support.endpoint import Endpoint
from tests.support.push import (
    Devices,
    PushProcess,
    all_acknowledged,
    command,
    provision,
    push_settings,
    write_commands,
)
from tests.support.stack import mqtt_settings
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack


def shown(settings: Settings, port: int) -> Settings:
    return settings.model_copy(update={"metrics": MetricsSettings(port=port, probe_interval="500ms")})


def test_push_is_ready_while_it_owns_and_is_connected_and_a_standby_is_not(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    first_port, second_port = free_ports(2)
    with TcpProxy(stack.mqtt_host, stack.mqtt_port) as proxy:
        settings = push_settings(namespaces, mqtt_settings(stack, port=proxy.port))
        provision(settings)
        with PushProcess(shown(settings, first_port), tmp_path, "first") as first:
            owner = Endpoint(first_port)
            owner.await_ready()
            assert owner.value("pulsebridge_push_takeovers_total") == 1
            with proxy.away():
                owner.await_missing("partition 0", "MQTT is away")
                assert owner.value("pulsebridge_ready") == 0
                assert owner.value("pulsebridge_healthy") == 1
            owner.await_ready()
            with PushProcess(shown(settings, second_port), tmp_path, "second") as second:
                standby = Endpoint(second_port)
                poll_for(lambda: "push starts" in (tmp_path / "second.log").read_text(), 60, "a standby")
                standby.await_missing("partition 0", "another process owns it")
                first.kill()
                standby.await_ready()
                assert second.terminate() == 0


def test_metrics_of_push_add_up_to_what_was_commanded(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    settings = push_settings(namespaces, mqtt_settings(stack))
    provision(settings)
    commands = [command(settings, f"d{n % 4}", n, emitted_at_us=time.time_ns() // 1000) for n in range(40)]
    with Devices(settings) as devices, PushProcess(shown(settings, port), tmp_path) as process:
        process.owns()
        endpoint = Endpoint(port)
        write_commands(settings, commands)
        devices.await_all(commands)
        all_acknowledged(settings)
        shows = {
            "pushed_total": 40.0,
            "repeated_total": 0.0,
            "dead_letters_total": 0.0,
            "connections_total": 1.0,
            "confirm_seconds_count": 40.0,
            "delivery_seconds_count": 40.0,
            "owned": 1.0,
            "devices": 4.0,
            "held_back_devices": 0.0,
            "pending": 0.0,
            "oldest_pending_seconds": 0.0,
        }
        for name, value in shows.items():  # gauges are set once a second
            poll_for(
                lambda name=name, value=value: endpoint.value(f"pulsebridge_push_{name}") == value,  # type: ignore[misc]
                20,
                f"{name} to be {value}",
            )
        assert endpoint.value("pulsebridge_push_receipts_total", state="delivered") == 40
        assert endpoint.value("pulsebridge_push_lag_commands", partition="0") >= 0
        text = endpoint.get("/metrics")[1]
        assert "d1" not in text
        assert settings.push.client_id not in text
