"""A RabbitMQ of a test's own, with the MQTT plugin: every file and port is its own, and no daemon stays."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bridge.mqtt.device import probe
from bridge.mqtt.types import Connected
from bridge.settings.mqtt import MqttSettings
from pulsebridge.local.ports import free_ports
from pulsebridge.local.processes import Server, last_lines
from tests.support.certificates import HOST
from tests.support.waiting import poll_for

__all__ = ["rabbitmq"]

_PROGRAMS = Path("/usr/lib/rabbitmq/bin")  # not the wrapper of the package, which changes the user


@contextmanager
def rabbitmq(folder: Path, definitions: Path, user: str, password: str) -> Iterator[int]:
    """Run RabbitMQ with these definitions, and give its MQTT port; ``user`` may connect."""
    program, names = _PROGRAMS / "rabbitmq-server", shutil.which("epmd")
    if not program.exists() or names is None:
        pytest.skip("RabbitMQ is not installed")
    mqtt, dist, epmd = free_ports(3)
    (folder / "plugins").write_text("[rabbitmq_mqtt].\n", encoding="utf-8")
    (folder / "rabbitmq.conf").write_text(
        f"listeners.tcp = none\nmqtt.listeners.tcp.default = {HOST}:{mqtt}\nmqtt.allow_anonymous = false\n"
        f"load_definitions = {definitions}\n",
        encoding="utf-8",
    )
    environment = {
        **os.environ,
        "HOME": str(folder),
        "ERL_EPMD_PORT": str(epmd),
        "ERL_EPMD_ADDRESS": HOST,
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        "RABBITMQ_NODENAME": "test@localhost",
        "RABBITMQ_DIST_PORT": str(dist),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_LOGS": "-",
    }
    servers: list[Server] = []
    try:
        for name, command in (("epmd", [names, "-port", str(epmd)]), ("rabbitmq", [str(program)])):
            servers.append(
                Server(name, command, log=folder / f"{name}.log", cwd=folder, environment=environment, grace_s=2)
            )
        settings = MqttSettings(
            host=HOST, port=mqtt, username=user, password=password, protocol="3.1.1", client_id=user
        )

        def ready() -> bool:
            assert servers[-1].alive(), last_lines(servers[-1].log)
            return isinstance(probe(settings), Connected)

        poll_for(ready, 180, "RabbitMQ", every=0.5)
        yield mqtt
    finally:
        for server in reversed(servers):
            server.kill()
