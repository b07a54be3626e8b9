"""A Spark Connect server, started as its users do, and what its clients and spark-pipelines are given."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pulsebridge.downloads.preflight import find_java
from pulsebridge.local.ports import free_ports
from pulsebridge.local.processes import Server, last_lines
from tests.support.waiting import poll_for

__all__ = ["connect_server", "environment", "spark_command", "spark_options"]

ROOT: Final = Path(__file__).resolve().parents[2]


def environment(**more: str) -> dict[str, str]:
    java = find_java()[0]
    assert java is not None
    path = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))).rstrip(os.pathsep)
    # A launcher for spark-submit's Python, which must be this one.
    return {
        **os.environ,
        "JAVA_HOME": str(java.home),
        "PYTHONPATH": path,
        "PYSPARK_PYTHON": sys.executable,
        **more,
    }


def spark_command(name: str) -> str:
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return str(Path(found.origin).parent / "bin" / name)


def spark_options(folder: Path) -> list[str]:
    """Return what spark-submit and spark-pipelines are given: the settings of ``conf/``, and Delta's jars."""
    from pulsebridge.downloads.spark_jars import delta_jars
    from streaming.session import spark_settings

    settings = spark_settings("local[2]") | {
        # Threads of spark-pipelines do not find what spark.jars names.
        "spark.driver.extraClassPath": os.pathsep.join(map(str, delta_jars())),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "scratch"),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    return [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """Start a Spark Connect server on a free port of loopback, and give its address."""
    (port,) = free_ports(1)
    server = Server(
        "connect",
        [
            spark_command("spark-submit"), "--master", "local[2]", "--name", "connect",
            "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
            *spark_options(folder),
            "--conf", f"spark.connect.grpc.binding.port={port}",
            "--conf", "spark.connect.grpc.binding.address=127.0.0.1",
            "spark-internal",
        ],
        log=folder / "connect.log", cwd=folder, environment=environment(SPARK_LOCAL_IP="127.0.0.1"), grace_s=30,
    )  # fmt: skip

    def listens() -> bool:
        assert server.alive(), last_lines(server.log)
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        poll_for(listens, 120, "the server to listen")
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.ask()
        server.stop()
