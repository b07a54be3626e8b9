"""The brokers of the page: how each is started, with its defaults unless a setup is given.

Artemis and Mosquitto are those of ``pulsebridge up``, RabbitMQ that of the system. The others are used if a variable of
the environment names them: ``BROKER_NATS``, ``BROKER_MOCHI`` and ``BROKER_RUMQTTD`` a program, ``BROKER_HIVEMQ`` the
folder of its jars.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bridge.mqtt.device import probe
from bridge.mqtt.types import Connected
from bridge.settings.mqtt import MqttSettings
from bridge.user_folders import default_cache_dir
from pulsebridge.downloads import distributions
from pulsebridge.downloads.preflight import find_java, find_mosquitto, total_memory
from pulsebridge.local.mqtt_servers import artemis_command, artemis_files, mosquitto_config
from pulsebridge.local.processes import Server, last_lines
from pulsebridge.local.sizes import sizes_for
from tests.support.rabbitmq import installed, start_rabbitmq
from tests.support.waiting import poll_for

__all__ = ["BROKERS", "Broker", "end", "newest", "started"]

_VERSION = re.compile(r"\d+(?:\.\d+)+")


@dataclass(frozen=True)
class Broker:
    """One column of the page. ``start`` gets a folder that it may have used before, and free ports, the first for MQTT."""

    title: str
    """Its name, with {} for the version."""
    version: Callable[[], str | None]
    """The version, None if the broker is not installed."""
    start: Callable[[Path, Sequence[int]], list[Server]]
    setup: str
    """What is not default in its configuration."""


def end(servers: Sequence[Server], *, kill: bool) -> None:
    """Stop the servers of a broker, or kill them."""
    for server in reversed(servers):
        server.kill() if kill else server.stop()


def started(broker: Broker, folder: Path, ports: Sequence[int]) -> list[Server]:
    """Start a broker, and wait until it accepts a connection."""
    servers = broker.start(folder, ports)

    def ready() -> bool:
        assert servers[-1].alive(), last_lines(servers[-1].log)
        return newest(ports[0]) is not None

    poll_for(ready, 120, broker.title, every=0.2)
    return servers


def newest(port: int) -> str | None:
    """Return the newest version of MQTT that the broker accepts, None if it accepts no connection."""
    versions: tuple[Literal["5", "3.1.1"], ...] = ("5", "3.1.1")
    accepted = (v for v in versions if isinstance(probe(MqttSettings(port=port, protocol=v)), Connected))
    return next(accepted, None)


def _server(name: str, command: Sequence[str], folder: Path) -> list[Server]:
    return [Server(name, command, log=folder / f"{name}.log", cwd=folder, environment=os.environ, grace_s=20)]


def _printed_version(*command: str) -> str | None:
    """Return the version that a program prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = _VERSION.search(done.stdout + done.stderr)
    return None if found is None else found[0]


def _program(variable: str, flag: str) -> str | None:
    path = os.environ.get(variable)
    return None if path is None else os.environ.get(f"{variable}_VERSION") or _printed_version(path, flag)


def _artemis(folder: Path, ports: Sequence[int]) -> list[Server]:
    java, _ = find_java()
    assert java is not None
    (home,) = distributions.ensure([distributions.ARTEMIS], cache=default_cache_dir(), java=java.home)
    sizes = sizes_for(total_memory(), 0)
    for part in ("etc", "data", "tmp"):
        (folder / part).mkdir(exist_ok=True)
    for file, text in artemis_files(port=ports[0], instance=folder, sizes=sizes, fsync=False).items():
        (folder / "etc" / file).write_text(text, encoding="utf-8")
    return _server(
        "artemis", artemis_command(java=java.home, home=home, instance=folder, sizes=sizes, quick=True), folder
    )


def _mosquitto(lines: Sequence[str]) -> Callable[[Path, Sequence[int]], list[Server]]:
    def start(folder: Path, ports: Sequence[int]) -> list[Server]:
        (folder / "data").mkdir(exist_ok=True)
        data = folder / "data"
        text = mosquitto_config(port=ports[0], data=data)
        if lines:
            text = "\n".join((f"listener {ports[0]} 127.0.0.1", f"persistence_location {data}/", *lines, ""))
        if os.getuid() == 0:
            text += "user root\n"  # else it gives up its rights, and with them its files
        (folder / "mosquitto.conf").write_text(text, encoding="utf-8")
        program = find_mosquitto()
        assert program is not None
        return _server("mosquitto", [program, "-c", str(folder / "mosquitto.conf")], folder)

    return start


def _mosquitto_version() -> str | None:
    program = find_mosquitto()
    return None if program is None else _printed_version(program, "-h")


def _rabbitmq_version() -> str | None:
    program = shutil.which("rabbitmqctl", path="/usr/lib/rabbitmq/bin:/usr/sbin")
    if program is None or not installed():
        return None
    return os.environ.get("BROKER_RABBITMQ_VERSION") or _printed_version("dpkg-query", "-W", "rabbitmq-server")


def _rabbitmq(folder: Path, ports: Sequence[int]) -> list[Server]:
    return start_rabbitmq(folder, ports[:3], ("mqtt.allow_anonymous = true",))


def _nats(folder: Path, ports: Sequence[int]) -> list[Server]:
    text = (
        f'server_name: pages\nlisten: "127.0.0.1:{ports[1]}"\njetstream {{ store_dir: "{folder}/data" }}\n'
        f'mqtt {{ listen: "127.0.0.1:{ports[0]}" }}\n'
    )
    (folder / "nats.conf").write_text(text, encoding="utf-8")
    return _server("nats", [os.environ["BROKER_NATS"], "-c", str(folder / "nats.conf")], folder)


def _mochi(folder: Path, ports: Sequence[int]) -> list[Server]:
    text = (
        f'listeners:\n  - {{type: tcp, id: mqtt, address: "127.0.0.1:{ports[0]}"}}\n'
        f"hooks:\n  auth: {{allow_all: true}}\n  storage: {{bolt: {{path: {folder}/mochi.db, bucket: mochi}}}}\n"
    )
    (folder / "mochi.yaml").write_text(text, encoding="utf-8")
    return _server("mochi", [os.environ["BROKER_MOCHI"], "--config", str(folder / "mochi.yaml")], folder)


def _rumqttd(version: int) -> Callable[[Path, Sequence[int]], list[Server]]:
    def start(folder: Path, ports: Sequence[int]) -> list[Server]:
        router = "max_connections = 1000\nmax_outgoing_packet_count = 200\nmax_segment_size = 104857600\nmax_segment_count = 10\n"
        text = (
            f"id = 0\n[router]\n{router}[v{version}.1]\nname = 'v{version}'\nlisten = '127.0.0.1:{ports[0]}'\n"
            f"next_connection_delay_ms = 1\n[v{version}.1.connections]\nconnection_timeout_ms = 60000\n"
            "max_payload_size = 20480\nmax_inflight_count = 100\ndynamic_filters = true\n"
        )
        (folder / "rumqttd.toml").write_text(text, encoding="utf-8")
        return _server("rumqttd", [os.environ["BROKER_RUMQTTD"], "-c", str(folder / "rumqttd.toml")], folder)

    return start


def _hivemq_version() -> str | None:
    folder = os.environ.get("BROKER_HIVEMQ")
    found = None if folder is None else next(Path(folder).glob("hivemq-community-edition-*.jar"), None)
    return None if found is None else _VERSION.findall(found.name)[-1]


def _hivemq(folder: Path, ports: Sequence[int]) -> list[Server]:
    java, _ = find_java()
    assert java is not None
    for part in ("conf", "data", "log", "extensions"):
        (folder / part).mkdir(exist_ok=True)
    listener = f"<tcp-listener><port>{ports[0]}</port><bind-address>127.0.0.1</bind-address></tcp-listener>"
    (folder / "conf/config.xml").write_text(
        f"<?xml version='1.0'?><hivemq><listeners>{listener}</listeners>"
        "<anonymous-usage-statistics><enabled>false</enabled></anonymous-usage-statistics></hivemq>",
        encoding="utf-8",
    )
    command = [
        str(java.home / "bin/java"),
        "-Xmx1g",
        "--add-opens=java.base/java.lang=ALL-UNNAMED",
        "--add-opens=java.base/java.nio=ALL-UNNAMED",
        "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
        "--add-opens=jdk.management/com.sun.management.internal=ALL-UNNAMED",
        f"-Dhivemq.home={folder}",
        "-cp",
        f"{os.environ['BROKER_HIVEMQ']}/*",
        "com.hivemq.HiveMQServer",
    ]
    return _server("hivemq", command, folder)


BROKERS = {
    "artemis": Broker(
        "Artemis {}", lambda: distributions.ARTEMIS.artifact.version, _artemis, "as `pulsebridge up` configures it"
    ),
    "mosquitto": Broker(
        "Mosquitto {}",
        _mosquitto_version,
        _mosquitto(("allow_anonymous true", "persistence true")),
        "`persistence true`; else its defaults",
    ),
    "mosquitto-local": Broker(
        "Mosquitto {} of `pulsebridge up`", _mosquitto_version, _mosquitto(()), "as `pulsebridge up` configures it"
    ),
    "hivemq": Broker("HiveMQ CE {}", _hivemq_version, _hivemq, "its defaults, without extensions"),
    "nats": Broker(
        "NATS {}", lambda: _program("BROKER_NATS", "--version"), _nats, "JetStream in files; else its defaults"
    ),
    "rabbitmq": Broker("RabbitMQ {}", _rabbitmq_version, _rabbitmq, "the MQTT plugin with its defaults"),
    "mochi": Broker(
        "mochi {}", lambda: _program("BROKER_MOCHI", "--version"), _mochi, "its command with bolt as storage"
    ),
    "rumqttd-v4": Broker(
        "rumqttd {}, v4 listener",
        lambda: _program("BROKER_RUMQTTD", "--version"),
        _rumqttd(4),
        "its example configuration; a listener speaks one version of MQTT",
    ),
    "rumqttd-v5": Broker(
        "rumqttd {}, v5 listener",
        lambda: _program("BROKER_RUMQTTD", "--version"),
        _rumqttd(5),
        "its example configuration; a listener speaks one version of MQTT",
    ),
}
"""By the name of the file of their results."""
