"""The local stack: Pulsar and an MQTT broker as child processes, for users, tests and notebooks.

``LocalStack`` decides ports, folders and the start order. Pulsar is a standalone, or a cluster of eight processes
(``cluster``) if ``local.cluster`` is set. ``pulsar_server`` and ``mqtt_servers`` configure the servers.
``processes`` and ``guardian`` stop them with this process, ``readiness`` checks their readiness, and ``distributions``
provides their files.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Literal

import psutil

from bridge.errors import ConfigError, TerminalError, TransientError
from bridge.settings.local import LocalSettings
from bridge.user_folders import default_cache_dir
from pulsebridge.downloads import distributions
from pulsebridge.downloads.download import Progress
from pulsebridge.downloads.preflight import Java, check_disk, check_java, find_java, find_mosquitto, total_memory
from pulsebridge.local.cluster import LocalCluster
from pulsebridge.local.mqtt_servers import artemis_command, artemis_files, mosquitto_config
from pulsebridge.local.ports import free_ports, is_free, loopback_interface, refuse_used
from pulsebridge.local.processes import Server, await_ready
from pulsebridge.local.pulsar_server import pulsar_command, pulsar_overrides, render_properties
from pulsebridge.local.readiness import check_listener, mqtt_address, mqtt_round_trip, pulsar_healthy, pulsar_round_trip
from pulsebridge.local.sizes import Sizes, sizes_for

__all__ = ["LocalStack", "ServerName"]

ServerName = Literal["pulsar", "mqtt"]
_GRACE_S = 8.0
_PORTS_FILE = "ports.json"
_OWNER_FILE = "owner.pid"
_TEMPORARY = "pulsebridge-stack-"
_FREE_TO_RUN = 512 * 1024 * 1024


class LocalStack:
    """Pulsar and an MQTT broker on loopback ports. Use it as a context manager, or call start() and stop().

    Without a data folder it uses a temporary one, which stop() removes. The servers end with this process, also if it
    is killed. It is not thread-safe.
    """

    def __init__(
        self,
        settings: LocalSettings | None = None,
        *,
        report: Callable[[str], None] | None = None,
        progress: Progress | None = None,
        usual_ports: bool = False,
    ) -> None:
        """``report`` is called with a line at each stage, ``progress`` with the bytes of downloads.

        Both are called on threads of this object. ``usual_ports`` uses 1883, 6650 and 8080 if they are free.
        """
        self.settings = settings or LocalSettings()
        self.stages: dict[str, float] = {}
        """Duration of each stage in seconds: download, pulsar, mqtt, ready."""
        self._report = report or (lambda line: None)
        self._progress = progress
        self._usual_ports = usual_ports
        self._servers: dict[str, Server] = {}
        self._temporary: Path | None = None
        self._data: Path | None = None
        self._java: Java | None = None
        self._homes: dict[str, Path] = {}
        self._sizes: Sizes = sizes_for(total_memory(), self.settings.mqtt_heap // 1024**2)
        self._bookie_port = 0
        self.cluster: LocalCluster | None = None
        """The Pulsar cluster, once it is started; None with a standalone."""
        self._abandon = threading.Event()
        self.mqtt_host = "127.0.0.1"
        self.mqtt_port = 0
        self.pulsar_port = 0
        self.admin_port = 0
        if (self.settings.pulsar_url is None) != (self.settings.admin_url is None):
            raise ConfigError("local.pulsar_url and local.admin_url require each other", remedy="set both or neither")

    def __enter__(self) -> LocalStack:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    # --- addresses ---

    @property
    def mqtt_url(self) -> str:
        """The MQTT broker's URL, ``mqtt://127.0.0.1:port``."""
        return f"mqtt://{self.mqtt_host}:{self.mqtt_port}"

    @property
    def pulsar_url(self) -> str:
        """Pulsar's binary service URL."""
        if self.cluster is not None:
            return self.cluster.service_url
        return self.settings.pulsar_url or f"pulsar://127.0.0.1:{self.pulsar_port}"

    @property
    def admin_url(self) -> str:
        """Pulsar's admin REST URL."""
        if self.cluster is not None:
            return self.cluster.admin_url
        return self.settings.admin_url or f"http://127.0.0.1:{self.admin_port}"

    @property
    def data_dir(self) -> Path:
        """The folder of the servers' data. Raises TerminalError before start()."""
        if self._data is None:
            raise TerminalError("the local stack is not started", remedy="call start() first")
        return self._data

    @property
    def pids(self) -> dict[str, int]:
        """The pids of the running servers, by name."""
        return {name: server.pid for name, server in self.servers.items() if server.alive()}

    @property
    def servers(self) -> dict[str, Server]:
        """The server processes, by name."""
        return dict(self._servers) | ({} if self.cluster is None else self.cluster.servers)

    @property
    def homes(self) -> dict[str, Path]:
        """The folders of the unpacked distributions in use, by server."""
        return dict(self._homes)

    def settings_overrides(self) -> dict[str, Any]:
        """Return the settings for Pulsebridge to use these servers, by their dotted paths."""
        return {
            "mqtt.host": self.mqtt_host,
            "mqtt.port": self.mqtt_port,
            "pulsar.service_url": self.pulsar_url,
            "pulsar.admin_url": self.admin_url,
        }

    # --- lifecycle ---

    def start(self) -> None:
        """Download missing files, start both servers and wait for a message round trip through each.

        Raises TerminalError for no Java, a full disk, a used port or a missing download. Raises TransientError if a
        download or a server failed, with the last lines of its log. After an error no server runs.
        """
        if self.servers:
            return
        self._abandon.clear()
        try:
            self._prepare()
            began = time.monotonic()
            self._launch_all(self._own())
            self.stages["ready"] = time.monotonic() - began
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop both servers and remove a temporary data folder. Does nothing if they are stopped."""
        servers = list(self._servers.values())
        self._servers.clear()
        for server in servers:
            if self._temporary is not None:
                server.kill()  # its data is not kept
            else:
                server.ask()
        for server in servers:
            server.stop()
        if self.cluster is not None:
            self.cluster.stop(discard=self._temporary is not None)
            self.cluster = None
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = self._data = None

    def check(self) -> None:
        """Raise TransientError with name, end and last log lines of a server that ended by itself."""
        for server in self.servers.values():
            failure = server.failure()
            if failure is not None:
                raise failure

    def kill(self, name: ServerName) -> None:
        """Send SIGKILL to one server and wait until it has ended; restart() uses the same data and port."""
        self._server(name).kill()

    def restart(self, name: ServerName) -> None:
        """Restart one server, killed first if it runs, with the same port and data; wait for readiness."""
        self._server(name).kill()
        self._launch(name)

    # --- steps ---

    def _server(self, name: str) -> Server:
        if name not in self._servers:
            raise TerminalError(f"this stack does not own the {name} server", remedy="start it with the stack")
        return self._servers[name]

    def _own(self) -> list[str]:
        given = {"pulsar": self.settings.pulsar_url, "mqtt": self.settings.mqtt_url}
        return [name for name, url in given.items() if url is None]

    def _prepare(self) -> None:
        s = self.settings
        own = self._own()
        self._java, _ = find_java()
        if self._java is None:
            missing = check_java()
            raise TerminalError(f"no Java {missing.needed}, found: {missing.found}", remedy=missing.remedy)
        cache = s.cache_dir or default_cache_dir()
        if s.data_dir is None:
            _sweep()
            self._temporary = Path(tempfile.mkdtemp(prefix=_TEMPORARY))
            self._data = self._temporary
            (self._data / _OWNER_FILE).write_text(str(os.getpid()), encoding="ascii")
        else:
            self._data = s.data_dir.absolute()
            self._data.mkdir(parents=True, exist_ok=True)
        disk = check_disk(self._data, _FREE_TO_RUN, s.max_disk_usage)
        if not disk.ok:
            raise TerminalError(f"the disk is too full for the servers: {disk.found}", remedy=disk.remedy)
        refuse_used(s)
        began = time.monotonic()
        wanted = {"pulsar": distributions.PULSAR, "mqtt": distributions.ARTEMIS}
        if s.mqtt_server != "artemis":
            del wanted["mqtt"]
        names = [name for name in wanted if name in own]
        homes = distributions.ensure(
            [wanted[name] for name in names],
            cache=cache,
            java=self._java.home,
            offline=s.offline,
            progress=self._progress,
        )
        self._homes = dict(zip(names, homes, strict=True))
        self.stages["download"] = time.monotonic() - began
        self._choose_ports()

    def _choose_ports(self) -> None:
        s = self.settings
        given = (s.mqtt_port, s.pulsar_port, s.admin_port)
        usual = self._earlier_ports() or ((1883, 6650, 8080, 0) if self._usual_ports else (0, 0, 0, 0))
        ports = [port or (old if old and is_free(old) else 0) for port, old in zip(given, usual, strict=False)]
        ports.append(usual[3])  # the port identifies the bookie, so existing data requires the same port
        free = iter(free_ports(4, excluded=ports))
        self.mqtt_port, self.pulsar_port, self.admin_port, self._bookie_port = (p or next(free) for p in ports)
        chosen = (self.mqtt_port, self.pulsar_port, self.admin_port, self._bookie_port)
        (self.data_dir / _PORTS_FILE).write_text(json.dumps(chosen), encoding="ascii")
        if s.mqtt_url is not None:
            self.mqtt_host, self.mqtt_port = mqtt_address(s.mqtt_url)

    def _earlier_ports(self) -> tuple[int, ...] | None:
        try:
            ports = json.loads((self.data_dir / _PORTS_FILE).read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None
        return tuple(int(p) for p in ports) if len(ports) == 4 else None

    def _launch_all(self, names: list[str]) -> None:
        for given in {"pulsar", "mqtt"} - set(names):
            if not self._ready(given):
                raise TransientError(f"{given}: the given server is not ready", remedy="see the log of that server")
        if not names:
            return
        with ThreadPoolExecutor(max_workers=len(names)) as pool:
            tasks = [pool.submit(self._launch, name) for name in names]
            try:
                done, pending = wait(tasks, return_when=FIRST_EXCEPTION)
            except BaseException:
                self._abandon.set()
                raise
            if pending:  # one failed: do not wait for the other
                self._abandon.set()
        for task in [*done, *pending]:  # the first failed one first, because its error is the cause
            task.result()

    def _launch(self, name: str) -> None:
        began = time.monotonic()
        self._report(f"starting {name}")
        if name == "pulsar" and self.settings.cluster:
            self._start_cluster()
        else:
            server = self._pulsar() if name == "pulsar" else self._mqtt()
            self._servers[name] = server
            await_ready(server, lambda: self._ready(name), self.settings.start_timeout, self._abandon.is_set)
        self.stages[name] = time.monotonic() - began

    def _environment(self) -> dict[str, str]:
        # The user's JVM options are for other JVMs.
        skipped = ("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "CLASSPATH")
        environment = {k: v for k, v in os.environ.items() if k not in skipped}
        if self._java is not None:
            environment["JAVA_HOME"] = str(self._java.home)
        return environment

    def _start_cluster(self) -> None:
        assert self._java is not None
        self.cluster = LocalCluster(
            self.data_dir / "cluster",
            java=self._java.home,
            home=self._homes["pulsar"],
            environment=self._environment(),
            settings=self.settings,
            report=self._report,
            abandoned=self._abandon.is_set,
        )
        self.cluster.start()

    def _pulsar(self) -> Server:
        assert self._java is not None
        folder = self.data_dir / "pulsar"
        logs = folder / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        config = folder / "standalone.conf"
        template = (self._homes["pulsar"] / "conf/standalone.conf").read_text(encoding="utf-8")
        config.write_text(
            render_properties(
                template,
                pulsar_overrides(
                    pulsar_port=self.pulsar_port,
                    admin_port=self.admin_port,
                    loopback=loopback_interface(),
                    sizes=self._sizes,
                    fsync=self.settings.fsync,
                ),
            ),
            encoding="utf-8",
        )
        command = pulsar_command(
            java=self._java.home,
            home=self._homes["pulsar"],
            config=config,
            data=folder / "data",
            logs=logs,
            bookie_port=self._bookie_port,
            sizes=self._sizes,
            quick=self.settings.quick_start,
        )
        environment = self._environment() | {"PULSAR_STANDALONE_USE_ZOOKEEPER": "0"}
        return Server("pulsar", command, log=logs / "pulsar.log", cwd=folder, environment=environment, grace_s=_GRACE_S)

    def _mqtt(self) -> Server:
        folder = self.data_dir / "mqtt"
        log = folder / "logs/mqtt.log"
        for part in ("etc", "data", "tmp", "logs"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        if self.settings.mqtt_server == "mosquitto":
            program = find_mosquitto()
            if program is None:
                raise TerminalError("mosquitto is not on the PATH", remedy="install it, or use --mqtt-server artemis")
            config = folder / "etc/mosquitto.conf"
            config.write_text(mosquitto_config(port=self.mqtt_port, data=folder / "data"), encoding="utf-8")
            command = [program, "-c", str(config)]
        else:
            assert self._java is not None
            files = artemis_files(port=self.mqtt_port, instance=folder, sizes=self._sizes, fsync=self.settings.fsync)
            for file, text in files.items():
                (folder / "etc" / file).write_text(text, encoding="utf-8")
            command = artemis_command(
                java=self._java.home,
                home=self._homes["mqtt"],
                instance=folder,
                sizes=self._sizes,
                quick=self.settings.quick_start,
            )
        return Server("mqtt", command, log=log, cwd=folder, environment=self._environment(), grace_s=_GRACE_S)

    def _ready(self, name: str) -> bool:
        if name == "mqtt" and self.settings.mqtt_url is not None:
            check_listener(self.mqtt_host, self.mqtt_port, timeout_s=5.0)
            return True
        if name == "mqtt":
            mqtt_round_trip(self.mqtt_host, self.mqtt_port, timeout_s=5.0)
            return True
        if not pulsar_healthy(self.admin_url, timeout_s=5.0):
            return False
        pulsar_round_trip(self.pulsar_url, self.admin_url)
        return True


def _sweep() -> None:
    """Remove the temporary folders of killed owners."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_TEMPORARY}*"):
        try:
            owner = int((folder / _OWNER_FILE).read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue  # another user's, or in creation
        if not psutil.pid_exists(owner):
            shutil.rmtree(folder, ignore_errors=True)
