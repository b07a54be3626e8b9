"""A Pulsar cluster on this machine: ZooKeeper, three bookies, three brokers and a proxy, each a child process.

It is for what a standalone Pulsar cannot show: topics that move, brokers and bookies that die or hang, a proxy. The
clients' URL names the brokers; ``proxy_url`` leads through the proxy. ``LocalStack`` starts it if ``local.cluster`` is
set.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from bridge.errors import TransientError
from bridge.settings.local import LocalSettings
from pulsebridge.local.ports import free_ports, loopback_interface
from pulsebridge.local.processes import Server, await_ready, last_lines
from pulsebridge.local.pulsar_server import java_command, pulsar_overrides, render_properties
from pulsebridge.local.readiness import pulsar_healthy
from pulsebridge.local.sizes import Sizes

__all__ = ["BROKERS", "LocalCluster"]

_BOOKIES: Final = ("bookie-0", "bookie-1", "bookie-2")
BROKERS: Final = ("broker-0", "broker-1", "broker-2")
_NAMES: Final = ("zookeeper", *_BOOKIES, *BROKERS, "proxy")
_PORTS_FILE: Final = "cluster-ports.json"
_CLUSTER: Final = "local"
_SESSION_MS: Final = 10_000
"""After this time without a sign of life a broker or a bookie counts as dead, and its topics move (Pulsar: 30 s)."""
_TICKS_S: Final = 2.0
"""ZooKeeper looks for sessions that have ended once a second."""
_GRACE_S: Final = 8.0

_MAIN: Final = {
    "zookeeper": "org.apache.zookeeper.server.quorum.QuorumPeerMain",
    "bookie": "org.apache.bookkeeper.server.Main",
    "broker": "org.apache.pulsar.PulsarBrokerStarter",
    "proxy": "org.apache.pulsar.proxy.server.ProxyServiceStarter",
}
_MEMORY: Final = {"zookeeper": (96, 64), "bookie": (192, 256), "broker": (320, 320), "proxy": (128, 192)}
"""Heap and direct memory, in MiB."""
_CACHES: Final = Sizes(
    pulsar_heap=0, pulsar_direct=0, pulsar_write_cache=32, pulsar_read_cache=32, pulsar_entry_cache=48, mqtt_heap=0
)


class LocalCluster:
    """A Pulsar cluster on loopback ports, with its data in ``folder``. Not thread-safe, but for the properties."""

    def __init__(
        self,
        folder: Path,
        *,
        java: Path,
        home: Path,
        environment: Mapping[str, str],
        settings: LocalSettings,
        report: Callable[[str], None] = lambda line: None,
        abandoned: Callable[[], bool] = lambda: False,
    ) -> None:
        """``java`` and ``home`` are the folders of the JDK and of Pulsar's distribution; ``abandoned`` ends a start."""
        self._folder = folder
        self._java = java
        self._home = home
        self._environment = dict(environment)
        self._settings = settings
        self._report = report
        self._abandoned = abandoned
        self.servers: dict[str, Server] = {}
        """The processes by name: zookeeper, bookie-0 to -2, broker-0 to -2, proxy."""
        self._killed_at: dict[str, float] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self._ports = self._chosen_ports()

    # --- addresses ---

    @property
    def service_url(self) -> str:
        """The binary service URL, which names all brokers."""
        return "pulsar://" + ",".join(f"127.0.0.1:{self._ports[name]}" for name in BROKERS)

    @property
    def admin_url(self) -> str:
        """The admin REST URL, which names all brokers."""
        return "http://" + ",".join(f"127.0.0.1:{self._ports[name + '-web']}" for name in BROKERS)

    @property
    def proxy_url(self) -> str:
        """The binary service URL of the proxy."""
        return f"pulsar://127.0.0.1:{self._ports['proxy']}"

    @property
    def proxy_admin_url(self) -> str:
        """The admin REST URL of the proxy."""
        return f"http://127.0.0.1:{self._ports['proxy-web']}"

    def name_of(self, url: str) -> str:
        """Return the broker of a service URL such as ``pulsar://127.0.0.1:20001``. Raises KeyError for another URL."""
        port = int(url.rpartition(":")[2])
        return {self._ports[name]: name for name in BROKERS}[port]

    def url_of(self, broker: str) -> str:
        """Return the binary service URL of one broker."""
        return f"pulsar://127.0.0.1:{self._ports[broker]}"

    def admin_url_of(self, broker: str) -> str:
        """Return the admin REST URL of one broker."""
        return f"http://127.0.0.1:{self._ports[f'{broker}-web']}"

    # --- lifecycle ---

    def start(self) -> None:
        """Start all processes and wait until each broker passes its health check.

        Raises TransientError with the last lines of the log of a process that failed or is not ready in time.
        """
        began = time.monotonic()
        self._launch(["zookeeper"])
        if not (self._folder / "initialized").exists():
            self._initialize()
        else:  # its bookies may have been killed
            self._await_end_of_session(time.monotonic())
        self._launch(_BOOKIES)
        self._launch(BROKERS)
        self._launch(["proxy"])
        self._report(f"the Pulsar cluster is ready after {time.monotonic() - began:.0f} s")

    def stop(self, *, discard: bool = False) -> None:
        """Stop all processes, the brokers first; ``discard`` kills them, because their data is not kept."""
        for kind in ("proxy", "broker", "bookie", "zookeeper"):
            servers = [server for name, server in self.servers.items() if name.startswith(kind)]
            for server in servers:
                (server.kill if discard else server.ask)()
            for server in servers:
                server.stop()
        self.servers.clear()

    def kill(self, name: str) -> None:
        """Send SIGKILL to one process and wait until it has ended."""
        self.servers[name].kill()
        self._killed_at.setdefault(name, time.monotonic())

    def restart(self, name: str) -> None:
        """Start one process again, killed first if it runs, with the same ports and data; wait until it is ready."""
        self.kill(name)
        killed_at = self._killed_at.pop(name)
        if name in _BOOKIES:
            self._await_end_of_session(killed_at)
        try:
            self._launch([name])
        except TransientError:
            if name not in BROKERS or self.servers[name].alive():
                raise
            # It ends if ZooKeeper ends the session of its predecessor while it looks up its own namespace.
            self._launch([name])

    # --- steps ---

    def _chosen_ports(self) -> dict[str, int]:
        file = self._folder / _PORTS_FILE
        names = [*_NAMES, *(f"{name}-web" for name in (*BROKERS, "proxy"))]
        try:
            found = json.loads(file.read_text(encoding="ascii"))
            return {name: int(found[name]) for name in names}  # a bookie is known by its port
        except (OSError, ValueError, KeyError):
            chosen = dict(zip(names, free_ports(len(names)), strict=True))
        file.write_text(json.dumps(chosen), encoding="ascii")
        return chosen

    def _await_end_of_session(self, killed_at: float) -> None:
        """While ZooKeeper has the session of a bookie that was killed, Pulsar refuses its successor, which does not try again."""
        time.sleep(max(0.0, killed_at + _SESSION_MS / 1000 + _TICKS_S - time.monotonic()))

    def _launch(self, names: Sequence[str]) -> None:
        self._report(f"starting {', '.join(names)}")
        for name in names:
            self.servers[name] = self._server(name)
        timeout_s = self._settings.start_timeout
        with ThreadPoolExecutor(len(names)) as pool:
            ready = [
                pool.submit(await_ready, self.servers[name], partial(self._ready, name), timeout_s, self._abandoned)
                for name in names
            ]
        for one in ready:
            one.result()

    def _server(self, name: str) -> Server:
        kind = name.partition("-")[0]
        folder = self._folder / name
        logs = folder / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        config = folder / f"{kind}.conf"
        config.write_text(self._config(kind, name, folder), encoding="utf-8")
        flag = {"zookeeper": [], "bookie": ["--conf"], "broker": ["--broker-conf"], "proxy": ["--config"]}[kind]
        command = [*self._command(kind, logs), _MAIN[kind], *flag, str(config)]
        return Server(
            name, command, log=logs / f"{name}.log", cwd=folder, environment=self._environment, grace_s=_GRACE_S
        )

    def _command(self, kind: str, logs: Path) -> list[str]:
        heap, direct = _MEMORY[kind]
        return java_command(
            java=self._java, home=self._home, logs=logs, heap=heap, direct=direct, quick=self._settings.quick_start
        )

    def _config(self, kind: str, name: str, folder: Path) -> str:
        store = f"zk:127.0.0.1:{self._ports['zookeeper']}"
        port, web, fsync = self._ports[name], self._ports.get(f"{name}-web", 0), self._settings.fsync
        if kind == "zookeeper":
            return render_properties(
                "",
                {
                    "tickTime": "1000",
                    "dataDir": str(folder / "data"),
                    "clientPort": str(port),
                    "clientPortAddress": "127.0.0.1",
                    "maxClientCnxns": "0",
                    "admin.enableServer": "false",
                    "forceSync": "yes" if fsync else "no",
                },
            )
        common = pulsar_overrides(
            pulsar_port=port, admin_port=web, loopback=loopback_interface(), sizes=_CACHES, fsync=fsync
        )
        common |= {
            "clusterName": _CLUSTER,
            "metadataStoreUrl": store,
            "configurationMetadataStoreUrl": store,
            "metadataStoreSessionTimeoutMillis": str(_SESSION_MS),
            "loadBalancerEnabled": "true",
        }
        own = {
            "bookie": {
                "bookiePort": str(port),
                "metadataServiceUri": f"metadata-store:{store}",
                "zkTimeout": str(_SESSION_MS),
                "journalDirectories": str(folder / "journal"),
                "ledgerDirectories": str(folder / "ledgers"),
                # The default listens on port 8000 of every address.
                "statsProviderClass": "org.apache.bookkeeper.stats.NullStatsProvider",
            },
            "broker": {},
            # The default allows 6650 and 6651 alone (H55).
            "proxy": {"servicePort": str(port), "brokerProxyAllowedTargetPorts": "*"},
        }[kind]
        template = "bookkeeper.conf" if kind == "bookie" else f"{kind}.conf"
        return render_properties((self._home / "conf" / template).read_text(encoding="utf-8"), common | own)

    def _initialize(self) -> None:
        """Write the cluster's metadata. It is done once for a folder."""
        store = f"zk:127.0.0.1:{self._ports['zookeeper']}"
        logs = self._folder / "initialize"
        logs.mkdir(exist_ok=True)
        command = [
            *self._command("zookeeper", logs),
            "org.apache.pulsar.PulsarClusterMetadataSetup",
            *("--cluster", _CLUSTER, "--metadata-store", store, "--configuration-store", store),
            *("--web-service-url", self.admin_url, "--broker-service-url", self.service_url),
        ]
        setup = Server(
            "initialize", command, log=logs / "initialize.log", cwd=logs, environment=self._environment, grace_s=1.0
        )
        with suppress(TransientError):  # it ends by itself
            await_ready(setup, lambda: setup.exit_code == 0, self._settings.start_timeout, self._abandoned)
        if setup.exit_code != 0:
            setup.kill()
            raise TransientError(
                f"the metadata of the cluster was not written; its log ends:\n{last_lines(setup.log)}",
                remedy=f"the whole log: {setup.log}",
            )
        setup.kill()
        (self._folder / "initialized").touch()

    def _ready(self, name: str) -> bool:
        if name in BROKERS:
            return pulsar_healthy(self.admin_url_of(name), timeout_s=10.0)
        ports = [self._ports[part] for part in (name, f"{name}-web") if part in self._ports]
        try:
            for port in ports:
                socket.create_connection(("127.0.0.1", port), timeout=2.0).close()
        except OSError:
            return False
        return True
