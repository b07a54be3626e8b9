"""A Pulsar with transactions, and Java's client to make them: the Python client has none.

The client's jars come with the server; py4j, which pyspark brings, drives them step by step from Python, so that
nothing has to be compiled. Both end with the tests that want them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from bridge.pulsar.admin import PulsarAdmin
from bridge.settings import Settings
from bridge.settings.pulsar import PulsarSettings
from bridge.user_folders import default_cache_dir
from pulsebridge.downloads import distributions
from pulsebridge.downloads.preflight import find_java
from pulsebridge.local.ports import free_ports, loopback_interface
from pulsebridge.local.processes import Server, last_lines
from pulsebridge.local.pulsar_server import pulsar_command, pulsar_overrides, render_properties
from pulsebridge.local.sizes import Sizes
from tests.support.waiting import patient, poll_for

__all__ = ["JavaClient", "java_client", "running_pulsar"]

_SIZES = Sizes(
    pulsar_heap=384,
    pulsar_direct=384,
    pulsar_write_cache=48,
    pulsar_read_cache=24,
    pulsar_entry_cache=64,
    mqtt_heap=192,
)
_SKIPPED = ("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "CLASSPATH")


def _homes() -> tuple[Path, Path]:
    """Return the folders of Java and of the unpacked Pulsar."""
    java, _ = find_java()
    assert java is not None
    cache = Settings().local.cache_dir or default_cache_dir()
    (home,) = distributions.ensure([distributions.PULSAR], cache=cache, java=java.home)
    return java.home, home


@contextmanager
def running_pulsar(folder: Path, more: Mapping[str, str]) -> Iterator[PulsarSettings]:
    """Run a Pulsar of its own below ``folder``, with further keys of its configuration, and give its addresses."""
    java, home = _homes()
    service, admin, bookie = free_ports(3)
    for part in ("data", "logs"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    overrides = pulsar_overrides(
        pulsar_port=service, admin_port=admin, loopback=loopback_interface(), sizes=_SIZES, fsync=False
    )
    config = folder / "standalone.conf"
    template = (home / "conf/standalone.conf").read_text(encoding="utf-8")
    config.write_text(render_properties(template, overrides | dict(more)), encoding="utf-8")
    command = pulsar_command(
        java=java,
        home=home,
        config=config,
        data=folder / "data",
        logs=folder / "logs",
        bookie_port=bookie,
        sizes=_SIZES,
        quick=True,
    )
    inherited = {k: v for k, v in os.environ.items() if k not in _SKIPPED}
    environment = {**inherited, "JAVA_HOME": str(java), "PULSAR_STANDALONE_USE_ZOOKEEPER": "0"}
    server = Server("pulsar", command, log=folder / "logs/pulsar.log", cwd=folder, environment=environment, grace_s=0)
    settings = PulsarSettings(service_url=f"pulsar://127.0.0.1:{service}", admin_url=f"http://127.0.0.1:{admin}")

    def ready() -> bool:
        assert server.alive(), last_lines(server.log)
        with PulsarAdmin(settings, timeout_s=5) as asked:
            return asked.healthy()

    try:
        poll_for(ready, 120, "Pulsar", every=0.25)
        yield settings
    finally:
        server.kill()


class JavaClient:
    """Java's client of Pulsar, as far as the tests need it: producers in transactions."""

    def __init__(self, gateway: Any, settings: PulsarSettings) -> None:
        self._jvm = gateway.jvm
        api = self._jvm.org.apache.pulsar.client.api
        builder = api.PulsarClient.builder().serviceUrl(settings.service_url)
        self._client = builder.enableTransaction(True).build()
        self._producers: dict[str, Any] = {}

    def begin(self) -> Any:
        """Return a new transaction; ``commit().get()`` or ``abort().get()`` ends it."""
        minutes = self._jvm.java.util.concurrent.TimeUnit.MINUTES
        return self._client.newTransaction().withTransactionTimeout(5, minutes).build().get()

    def send(self, topic: str, payloads: Iterable[bytes], transaction: Any = None) -> None:
        """Write messages, one entry each, inside a transaction or outside of any."""
        if topic not in self._producers:
            seconds = self._jvm.java.util.concurrent.TimeUnit.SECONDS
            builder = self._client.newProducer().topic(topic).enableBatching(False)
            self._producers[topic] = builder.sendTimeout(0, seconds).create()
        producer = self._producers[topic]
        for payload in payloads:
            message = producer.newMessage() if transaction is None else producer.newMessage(transaction)
            message.value(payload).send()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


@contextmanager
def java_client(settings: PulsarSettings) -> Iterator[JavaClient]:
    """Start a JVM with the client's jars and connect it."""
    java, home = _homes()
    (py4j,) = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    port, token, process = launch_gateway(
        jarpath=str(py4j),
        classpath=f"{home / 'lib'}/*",  # without conf, whose log4j2.yaml makes a folder of logs here
        javaopts=["-Xmx192m", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=ERROR"],
        java_path=str(java / "bin/java"),
        die_on_exit=True,
        enable_auth=True,
        return_proc=True,
        redirect_stdout=None,
        redirect_stderr=None,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
    try:
        client = JavaClient(gateway, settings)
        try:
            yield client
        finally:
            client.close()
    finally:
        gateway.shutdown()
        process.stdin.close()
        process.wait(timeout=patient(60))
        process.stdout.close()
