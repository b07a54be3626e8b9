"""The servers under the tests: one stack per session, and namespaces of their own for each test."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

import pytest

from bridge.pulsar.admin import PulsarAdmin
from bridge.settings import Settings
from bridge.settings.local import LocalSettings
from bridge.settings.mqtt import MqttSettings
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.downloads.preflight import find_mosquitto
from pulsebridge.local.stack import LocalStack
from tests.support.waiting import patient


def new_stack(**changes: Any) -> LocalStack:
    """Return a stack that is not started, with a temporary data folder and the user's download cache."""
    cache: Path | None = Settings().local.cache_dir
    usual = {"cache_dir": cache, "start_timeout": f"{patient(120)}s"}
    return LocalStack(LocalSettings(**(usual | changes)))


def mosquitto_beside(stack: LocalStack) -> LocalStack:
    """Return a Mosquitto beside this stack's Pulsar, not started; the test is skipped where it is not installed."""
    if find_mosquitto() is None:
        pytest.skip("Mosquitto is not installed")
    return new_stack(mqtt_server="mosquitto", pulsar_url=stack.pulsar_url, admin_url=stack.admin_url)


def session_stack() -> LocalStack:
    """Return the stack of a test session: new, or one that runs already.

    ``TEST_STACK`` names it as ``mqtt://…,pulsar://…,http://…``, as ``pulsebridge up`` prints them; each
    test has namespaces and client ids of its own, so that several sessions may share one.
    """
    running = os.environ.get("TEST_STACK")
    if not running:
        return new_stack()
    mqtt, pulsar, admin = running.split(",")
    return new_stack(mqtt_url=mqtt, pulsar_url=pulsar, admin_url=admin)


def provisioned(stack: LocalStack, **changes: Any) -> PulsarSettings:
    """Return settings for this stack with two namespaces of its own, provisioned."""
    name = f"t-{uuid.uuid4().hex[:10]}"
    settings = PulsarSettings(
        **(
            {
                "service_url": stack.pulsar_url,
                "admin_url": stack.admin_url,
                "namespace": name,
                "system_namespace": f"{name}-system",
            }
            | changes
        )
    )
    with PulsarAdmin(settings, timeout_s=30) as admin:
        admin.provision_namespaces()
    return settings


def mqtt_settings(stack: LocalStack, **changes: Any) -> MqttSettings:
    """Return settings for this stack's MQTT broker with a client id of its own."""
    return MqttSettings(
        **(
            {
                "host": stack.mqtt_host,
                "port": stack.mqtt_port,
                "client_id": f"t-{uuid.uuid4().hex[:10]}",
            }
            | changes
        )
    )
