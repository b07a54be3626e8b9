"""Readiness while Pulsar itself is away: hung, with its connections open, and killed. Ingest and push, side by side."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bridge.settings import MetricsSettings, Settings
from pulsebridge.local.ports import free_ports
from pulsebridge.local.stack import LocalStack
from tests.support.endpoint import Endpoint
from tests.support.ingest import device, ingest_process, ingest_settings, publish_ids, rule_for
from tests.support.push import PushProcess, provision, push_settings
from tests.support.stack import mqtt_settings, provisioned
from tests.support.waiting import patient, poll_for

pytestmark = [pytest.mark.stack, pytest.mark.chaos, pytest.mark.timeout(300)]


@contextmanager
def hung(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def shown(settings: Settings, port: int) -> Settings:
    return settings.model_copy(update={"metrics": MetricsSettings(port=port, probe_interval="500ms")})


@pytest.mark.long
def test_pulsar_away_makes_both_unready_and_no_more(private_stack: LocalStack, tmp_path: Path) -> None:
    ingest_port, push_port = free_ports(2)
    namespaces = provisioned(private_stack)
    mqtt = mqtt_settings(private_stack)
    settings = ingest_settings(mqtt, namespaces, routes=(rule_for(mqtt.client_id),), stall_warning="1s")
    pushing = push_settings(namespaces, mqtt_settings(private_stack))
    provision(pushing)
    confirmed: list[str] = []
    ingest, push = Endpoint(ingest_port), Endpoint(push_port)
    with (
        ingest_process(shown(settings, ingest_port), tmp_path) as process,
        PushProcess(shown(pushing, push_port), tmp_path) as pusher,
        device(mqtt, "dev", window=1) as dev,
    ):
        for endpoint in (ingest, push):
            endpoint.await_ready()
        with hung(private_stack.pids["pulsar"]):  # not one connection ends
            for endpoint in (ingest, push):
                endpoint.await_missing("pulsar", "")
            publish_ids(dev, [f"{mqtt.client_id}/w-1/glucose"], 50, confirmed)
            ingest.await_missing(f"writes of {mqtt.client_id}", "Pulsar")
            poll_for(lambda: ingest.value("pulsebridge_ingest_in_flight") > 0, 20, "messages in flight")
            assert ingest.value("pulsebridge_ingest_oldest_unacked_seconds") > 0
        for endpoint in (ingest, push):
            endpoint.await_ready()
        private_stack.kill("pulsar")
        for endpoint in (ingest, push):
            endpoint.await_missing("pulsar", "")
        private_stack.restart("pulsar")
        for endpoint in (ingest, push):
            endpoint.await_ready(120)
        poll_for(lambda: ingest.value("pulsebridge_ingest_acked_total") >= 50, 60, "all acknowledged")
        assert ingest.healthy
        assert push.healthy
        process.terminate()
        assert process.wait(patient(60)) == 0
        assert pusher.terminate() == 0
