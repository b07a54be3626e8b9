"""The brokers of the page: how each is started, with its defaults unless a setup is given.

Artemis and Mosquitto are those of ``pulsebridge up``. HiveMQ CE is fetched into the cache by its Maven coordinates. The
other programs are found on PATH, or by a variable such as ``BROKER_RUMQTTD``; ``setup`` names the command that installs
them.
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
from pulsebridge.downloads.ivy import Artifact
from pulsebridge.downloads.preflight import find_mosquitto, total_memory
from pulsebridge.local.mqtt_servers import artemis_command, artemis_files, mosquitto_config
from pulsebridge.local.processes import Server, last_lines
from pulsebridge.local.sizes import sizes_for
from tests.support.ivy_jars import jars, java_home
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


def _program(name: str) -> str | None:
    """Return the path of a broker's program."""
    return os.environ.get(f"BROKER_{name.partition('-')[0].upper()}") or shutil.which(name)


def _program_version(name: str) -> str | None:
    program = _program(name)
    return None if program is None else _printed_version(program, "--version")


def _artemis(folder: Path, ports: Sequence[int]) -> list[Server]:
    java = java_home()
    (home,) = distributions.ensure([distributions.ARTEMIS], cache=default_cache_dir(), java=java)
    sizes = sizes_for(total_memory(), 0)
    for part in ("etc", "data", "tmp"):
        (folder / part).mkdir(exist_ok=True)
    for file, text in artemis_files(port=ports[0], instance=folder, sizes=sizes, fsync=False).items():
        (folder / "etc" / file).write_text(text, encoding="utf-8")
    return _server("artemis", artemis_command(java=java, home=home, instance=folder, sizes=sizes, quick=True), folder)


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
    return _printed_version("dpkg-query", "-W", "rabbitmq-server")


def _rabbitmq(folder: Path, ports: Sequence[int]) -> list[Server]:
    return start_rabbitmq(folder, ports[:3], ("mqtt.allow_anonymous = true",))


def _nats(folder: Path, ports: Sequence[int]) -> list[Server]:
    text = (
        f'server_name: pages\nlisten: "127.0.0.1:{ports[1]}"\nhttp: "127.0.0.1:{ports[2]}"\n'
        f'jetstream {{ store_dir: "{folder}/data" }}\n'
        f'mqtt {{ listen: "127.0.0.1:{ports[0]}" }}\n'
    )
    (folder / "nats.conf").write_text(text, encoding="utf-8")
    return _server("nats", [str(_program("nats-server")), "-c", str(folder / "nats.conf")], folder)


_MOCHI = "2.7.9"


def _mochi(folder: Path, ports: Sequence[int]) -> list[Server]:
    text = (
        f'listeners:\n  - {{type: tcp, id: mqtt, address: "127.0.0.1:{ports[0]}"}}\n'
        f"hooks:\n  auth: {{allow_all: true}}\n  storage: {{bolt: {{path: {folder}/mochi.db, bucket: mochi}}}}\n"
    )
    (folder / "mochi.yaml").write_text(text, encoding="utf-8")
    return _server("mochi", [str(_program("mochi")), "--config", str(folder / "mochi.yaml")], folder)


def _rumqttd(version: int) -> Callable[[Path, Sequence[int]], list[Server]]:
    def start(folder: Path, ports: Sequence[int]) -> list[Server]:
        router = "max_connections = 1000\nmax_outgoing_packet_count = 200\nmax_segment_size = 104857600\nmax_segment_count = 10\n"
        text = (
            f"id = 0\n[router]\n{router}[v{version}.1]\nname = 'v{version}'\nlisten = '127.0.0.1:{ports[0]}'\n"
            f"next_connection_delay_ms = 1\n[v{version}.1.connections]\nconnection_timeout_ms = 60000\n"
            "max_payload_size = 20480\nmax_inflight_count = 100\ndynamic_filters = true\n"
        )
        (folder / "rumqttd.toml").write_text(text, encoding="utf-8")
        return _server("rumqttd", [str(_program("rumqttd")), "-c", str(folder / "rumqttd.toml")], folder)

    return start


_HIVEMQ = Artifact("com.hivemq", "hivemq-community-edition-embedded", "2025.5", transitive=True)


def _hivemq(folder: Path, ports: Sequence[int]) -> list[Server]:
    for part in ("conf", "data", "log", "extensions"):
        (folder / part).mkdir(exist_ok=True)
    listener = f"<tcp-listener><port>{ports[0]}</port><bind-address>127.0.0.1</bind-address></tcp-listener>"
    (folder / "conf/config.xml").write_text(
        f"<?xml version='1.0'?><hivemq><listeners>{listener}</listeners>"
        "<anonymous-usage-statistics><enabled>false</enabled></anonymous-usage-statistics></hivemq>",
        encoding="utf-8",
    )
    command = [
        str(java_home() / "bin/java"),
        "-Xmx1g",
        f"-Dhivemq.log.folder={folder}/log",
        "-cp",
        f"{jars(f'hivemq-{_HIVEMQ.version}', [_HIVEMQ])}/*",
        str(Path(__file__).with_name("HiveMq.java")),
        str(folder),
    ]
    return _server("hivemq", command, folder)


_RUMQTTD_SETUP = (
    "its example configuration, in which a listener speaks one version of MQTT "
    "(`cargo install rumqttd --version 0.20.0`)"
)

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
    "hivemq": Broker(
        "HiveMQ CE {}",
        lambda: _HIVEMQ.version,
        _hivemq,
        f"its defaults, embedded (`{_HIVEMQ.organisation}:{_HIVEMQ.name}` of Maven)",
    ),
    "nats": Broker(
        "NATS {}",
        lambda: _program_version("nats-server"),
        _nats,
        "JetStream in files; else its defaults (`apt-get install nats-server`)",
    ),
    "rabbitmq": Broker("RabbitMQ {}", _rabbitmq_version, _rabbitmq, "the MQTT plugin with its defaults"),
    "mochi": Broker(
        "mochi {}",
        lambda: _MOCHI if _program("mochi") else None,
        _mochi,
        f"bolt as storage (`go install github.com/mochi-mqtt/server/v2/cmd/docker@v{_MOCHI}`, named `mochi`)",
    ),
    "rumqttd-v4": Broker("rumqttd {}, v4 listener", lambda: _program_version("rumqttd"), _rumqttd(4), _RUMQTTD_SETUP),
    "rumqttd-v5": Broker("rumqttd {}, v5 listener", lambda: _program_version("rumqttd"), _rumqttd(5), _RUMQTTD_SETUP),
}
"""By the name of the file of their results."""
