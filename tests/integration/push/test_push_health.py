"""What a push process says of itself while it owns, while its servers are away, and while it stands by."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.local.ports import free_ports
from bridge.local.stack import LocalStack
from bridge.settings import MetricsSettings, PulsarSettings, Settings
from tests.support.endpoint import Endpoint
from tests.support.push import PushProcess, provision, push_settings
from tests.support.stack import mqtt_settings
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack


def shown(settings: Settings, port: int) -> Settings:
    return settings.model_copy(update={"metrics": MetricsSettings(port=port, probe_s=0.5)})


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
