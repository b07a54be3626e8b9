"""Configuration and command line of Pulsar standalone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from pulsebridge.local.jvm_flags import flags
from pulsebridge.local.sizes import Sizes

__all__ = ["java_command", "pulsar_command", "pulsar_overrides", "render_properties"]

# Packages that bin/pulsar opens to Netty, BookKeeper and RocksDB.
_OPENS = (
    "java.base/java.io",
    "java.base/java.util.zip",
    "java.base/java.nio",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)


def render_properties(text: str, overrides: Mapping[str, str]) -> str:
    """Return a Java properties file with the given keys: existing ones in their line, others at the end."""
    rest = dict(overrides)
    lines = []
    for line in text.splitlines():
        match = re.match(r"([A-Za-z0-9_.]+)\s*=", line)
        if match and match.group(1) in overrides:
            key = match.group(1)
            if key in rest:
                lines.append(f"{key}={rest.pop(key)}")
        else:
            lines.append(line)
    lines += [f"{key}={value}" for key, value in rest.items()]
    return "\n".join(lines) + "\n"


def pulsar_overrides(*, pulsar_port: int, admin_port: int, loopback: str, sizes: Sizes, fsync: bool) -> dict[str, str]:
    """Return the keys of ``standalone.conf`` that the local stack sets. ``loopback`` names the interface (lo)."""
    return {
        "brokerServicePort": str(pulsar_port),
        "webServicePort": str(admin_port),
        "bindAddress": "127.0.0.1",
        "advertisedAddress": "127.0.0.1",
        # Without this key the embedded bookie listens on every address.
        "listeningInterface": loopback,
        "allowLoopback": "true",
        # Allows a configured bookie port; else the bookie uses an ephemeral port of the system.
        "allowEphemeralPorts": "true",
        # Only this key controls fsync; without fsync a killed process loses no data, but a power cut may.
        "journalSyncData": str(fsync).lower(),
        "webSocketServiceEnabled": "false",
        "transactionCoordinatorEnabled": "false",
        "functionsWorkerEnabled": "false",
        "loadBalancerEnabled": "false",
        # Writes of a subscription's position per second; with the default, once in ten seconds, Pulsar redelivers up
        # to ten seconds of messages after a kill.
        "managedLedgerDefaultMarkDeleteRateLimit": "10",
        "managedLedgerCursorPositionFlushSeconds": "1",
        # A reader that has read everything waits for a new entry. The default looks again after 10 ms, which
        # delays each message by 5 ms (median).
        "managedLedgerNewEntriesCheckDelayInMillis": "0",
        "managedLedgerCacheSizeMB": str(sizes.pulsar_entry_cache),
        "dbStorage_writeCacheMaxSizeMb": str(sizes.pulsar_write_cache),
        "dbStorage_readAheadCacheMaxSizeMb": str(sizes.pulsar_read_cache),
        # As much as a dispatch reads. The default is half of the read cache: two readers of one bookie then read ahead
        # what the other's next read drops again, which doubles Pulsar's CPU for each message.
        "dbStorage_readAheadCacheBatchBytesSize": str(4 * 1024 * 1024),
        "dbStorage_rocksDB_blockCacheSize": str(16 * 1024 * 1024),
        # Each read of a compacted topic looks for its place, which costs about as much as the default of 100 entries.
        "dispatcherMaxReadBatchSize": "1000",
        "diskUsageThreshold": "0.99",
        "diskUsageWarnThreshold": "0.98",
        "brokerShutdownTimeoutMs": "3000",
        "numHttpServerThreads": "8",
    }


def pulsar_command(
    *,
    java: Path,
    home: Path,
    config: Path,
    data: Path,
    logs: Path,
    bookie_port: int,
    sizes: Sizes,
    quick: bool,
) -> list[str]:
    """Return the command line of the standalone: ``bin/pulsar standalone -nss -nfw``."""
    return [
        *java_command(java=java, home=home, logs=logs, heap=sizes.pulsar_heap, direct=sizes.pulsar_direct, quick=quick),
        f"-Dpulsar.config.file={config}",
        "org.apache.pulsar.PulsarStandaloneStarter",
        *("-nss", "-nfw", "--config", str(config), "--bookkeeper-port", str(bookie_port)),
        *("--metadata-dir", str(data / "metadata"), "--bookkeeper-dir", str(data / "bookkeeper")),
    ]


def java_command(*, java: Path, home: Path, logs: Path, heap: int, direct: int, quick: bool) -> list[str]:
    """Return the start of a command line, before the main class of a server; ``heap`` and ``direct`` are MiB.

    It is that of ``bin/pulsar`` without the ``java -version`` runs of its shell scripts, which last half a second.
    ``quick`` disables the second compiler, which uses half of the CPU until Pulsar is ready (see ``jvm_flags``).
    """
    properties = {
        "log4j.shutdownHookEnabled": "false",
        "log4j2.is.webapp": "false",
        "log4j.configurationFile": "log4j2.yaml",
        "java.net.preferIPv4Stack": "true",
        "java.io.tmpdir": str(logs),
        "io.netty.tryReflectionSetAccessible": "true",
        "org.apache.pulsar.shade.io.netty.tryReflectionSetAccessible": "true",
        "io.netty.recycler.maxCapacityPerThread": "4096",
        "pulsar.allocator.exit_on_oom": "true",
        "pulsar.log.dir": str(logs),
        "pulsar.log.appender": "Console",
        "pulsar.log.level": "info",
        "pulsar.log.root.level": "info",
        "bookkeeper.metadata.bookie.drivers": "org.apache.pulsar.metadata.bookkeeper.PulsarMetadataBookieDriver",
        "bookkeeper.metadata.client.drivers": "org.apache.pulsar.metadata.bookkeeper.PulsarMetadataClientDriver",
    }
    return [
        str(java / "bin/java"),
        "-cp",
        f"{home / 'conf'}:{home / 'lib'}/*",
        *(word for name in _OPENS for word in ("--add-opens", f"{name}=ALL-UNNAMED")),
        "--enable-native-access=ALL-UNNAMED",
        f"-Xms{heap // 2}m",
        f"-Xmx{heap}m",
        f"-XX:MaxDirectMemorySize={direct}m",
        "-XX:+PerfDisableSharedMem",
        "-XX:-UsePerfData",
        "-XX:+ExitOnOutOfMemoryError",
        *flags(quick=quick),
        *(f"-D{name}={value}" for name, value in properties.items()),
    ]
