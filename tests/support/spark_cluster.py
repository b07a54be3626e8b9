"""Spark clusters for tests: a standalone one of processes on loopback, and a Spark home that no package hides behind.

What runs on a cluster here knows neither this checkout nor its environment: no PYTHONPATH, no virtual environment on
the PATH, and Spark's own Python packages from its zip.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pulsebridge.downloads.preflight import find_java
from pulsebridge.local.ports import free_ports
from pulsebridge.local.processes import Server, last_lines
from tests.support.waiting import poll_for

__all__ = ["SparkHome", "standalone"]

_WORKERS = 2


@dataclass(frozen=True)
class SparkHome:
    """pyspark's Spark as an installation of its own."""

    folder: Path

    @classmethod
    def made_in(cls, folder: Path) -> SparkHome:
        """Lay out the home below ``folder``; workers write beside it."""
        found = find_spec("pyspark")
        assert found is not None
        assert found.origin is not None
        home = folder / "spark"
        home.mkdir()
        for name in ("bin", "jars", "python"):
            (home / name).symlink_to(Path(found.origin).parent / name)
        return cls(home)

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of a machine of the cluster: a Java, a bare Python, no package of Pulsebridge."""
        java = find_java()[0]
        assert java is not None
        kept = {name: os.environ[name] for name in ("HOME", "LANG", "LC_ALL", "TMPDIR") if name in os.environ}
        return {
            **kept,
            "PATH": os.pathsep.join(
                (str(self.folder / "bin"), f"{sys.base_prefix}/bin", "/usr/local/bin", "/usr/bin", "/bin")
            ),
            "JAVA_HOME": str(java.home),
            "SPARK_HOME": str(self.folder),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_AUTH_SOCKET_TIMEOUT": "60",
            **more,
        }

    def command(self, name: str) -> str:
        """Return the path of one of Spark's commands."""
        return str(self.folder / "bin" / name)


@contextmanager
def standalone(home: SparkHome, folder: Path) -> Iterator[str]:
    """Run a master and two workers, and give the master's URL when both have reported to it."""
    port, web = free_ports(2)
    master = f"spark://127.0.0.1:{port}"
    servers = [
        _server(home, folder, "Master", "master", "--port", str(port), "--webui-port", str(web)),
        *(
            _server(home, folder, "Worker", f"worker-{number}", "--webui-port", "0", "--cores", "1",
                    "--memory", "1g", "--work-dir", str(folder / f"work-{number}"), master)
            for number in range(_WORKERS)
        ),
    ]  # fmt: skip
    try:
        poll_for(lambda: _alive(servers, web) == _WORKERS, 60, "the workers to report to the master", every=0.2)
        yield master
    finally:
        for server in servers:
            server.ask()
        for server in servers:
            server.stop()


def _server(home: SparkHome, folder: Path, role: str, name: str, *arguments: str) -> Server:
    return Server(
        name,
        [home.command("spark-class"), f"org.apache.spark.deploy.{role.lower()}.{role}", "--host", "127.0.0.1",
         *arguments],
        log=folder / f"{name}.log", cwd=folder, grace_s=10,
        environment=home.environment(SPARK_DAEMON_MEMORY="256m", SPARK_DAEMON_JAVA_OPTS="-XX:TieredStopAtLevel=1"),
    )  # fmt: skip


def _alive(servers: list[Server], web: int) -> int:
    for server in servers:
        assert server.alive(), f"{server.name} ended:\n{last_lines(server.log)}"
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{web}/json/", timeout=5) as answer:
            state: dict[str, Any] = json.load(answer)
    except (OSError, json.JSONDecodeError):  # its page is served before the one in JSON
        return 0
    return int(state["aliveworkers"])
