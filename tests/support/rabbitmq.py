"""A RabbitMQ of a test's own, with the MQTT plugin: every file and port is its own, and no daemon stays."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
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

__all__ = ["installed", "rabbitmq", "start_rabbitmq"]

_PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # not the wrapper of the package, which changes the user


def installed() -> bool:
    """Return whether RabbitMQ is installed."""
    return _PROGRAM.exists() and shutil.which("epmd") is not None


def start_rabbitmq(
    folder: Path, ports: Sequence[int], lines: Sequence[str], plugins: str = "rabbitmq_mqtt"
) -> list[Server]:
    """Start RabbitMQ and its name server, also again on the same files; it may not accept connections yet.

    ``ports`` are those of MQTT, of the node and of the name server, ``lines`` more lines of the configuration.
    """
    mqtt, dist, epmd = ports
    (folder / "plugins").write_text(f"[{plugins}].\n", encoding="utf-8")
    text = ("listeners.tcp = none", f"mqtt.listeners.tcp.default = {HOST}:{mqtt}", *lines, "")
    (folder / "rabbitmq.conf").write_text("\n".join(text), encoding="utf-8")
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
    commands = {"epmd": [str(shutil.which("epmd")), "-port", str(epmd)], "rabbitmq": [str(_PROGRAM)]}
    return [
        Server(name, command, log=folder / f"{name}.log", cwd=folder, environment=environment, grace_s=20)
        for name, command in commands.items()
    ]


@contextmanager
def rabbitmq(folder: Path, definitions: Path, user: str, password: str) -> Iterator[int]:
    """Run RabbitMQ with these definitions, and give its MQTT port; ``user`` may connect."""
    if not installed():
        pytest.skip("RabbitMQ is not installed")
    ports = free_ports(3)
    servers = start_rabbitmq(folder, ports, ("mqtt.allow_anonymous = false", f"load_definitions = {definitions}"))
    try:
        settings = MqttSettings(
            host=HOST, port=ports[0], username=user, password=password, protocol="3.1.1", client_id=user
        )

        def ready() -> bool:
            assert servers[-1].alive(), last_lines(servers[-1].log)
            return isinstance(probe(settings), Connected)

        poll_for(ready, 180, "RabbitMQ", every=0.5)
        yield ports[0]
    finally:
        for server in reversed(servers):
            server.kill()
