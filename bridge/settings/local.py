"""Settings of the local stack: the servers that ``pulsebridge up`` starts."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from bridge.settings.base import Section
from bridge.settings.units import Duration, Size

__all__ = ["LocalSettings"]


class LocalSettings(Section):
    """The folders, addresses and limits of the local servers."""

    data_dir: Path | None = None
    """Folder of the servers' data; default: in the user's data folder (tests: a temporary one)."""
    cache_dir: Path | None = None
    """Folder of the downloads; default: in the user's cache folder."""
    mqtt_server: Literal["artemis", "mosquitto"] = "artemis"
    """MQTT broker to start; mosquitto must be on the PATH, and loses its queues at kill -9."""
    cluster: bool = False
    """Whether Pulsar is a cluster (ZooKeeper, three bookies, three brokers, a proxy: 3 GB of memory) instead of one
    process; its ports are free ones."""
    mqtt_port: int = Field(0, ge=0, le=65535)
    """TCP port of the MQTT broker; 0 selects a free one."""
    pulsar_port: int = Field(0, ge=0, le=65535)
    """TCP port of Pulsar's binary service; 0 selects a free one."""
    admin_port: int = Field(0, ge=0, le=65535)
    """TCP port of Pulsar's admin REST; 0 selects a free one."""
    mqtt_url: str | None = None
    """Running MQTT broker (mqtt://host:port) to use instead; the section mqtt has its login and TLS."""
    pulsar_url: str | None = None
    """Running Pulsar (pulsar://host:port) to use instead."""
    admin_url: str | None = None
    """Admin REST URL of the running Pulsar."""
    fsync: bool = False
    """Whether both servers flush to the disk before they acknowledge."""
    offline: bool = False
    """Whether only the cache is used, without downloads."""
    quick_start: bool = True
    """Whether the JVMs compile with fewer optimizations: half the CPU to start, less throughput."""
    mqtt_heap: Size = Field(Size(0), ge=0)
    """Heap of Artemis; 0: by the machine's memory, at most 512MiB. A topic needs 12 KB while a client subscribes to it
    or messages wait: 512MiB are too little for 100,000 devices, 2GiB are sufficient."""
    max_disk_usage: float = Field(0.98, gt=0, lt=1)
    """Share of the disk in use above which the servers are not started."""
    start_timeout: Duration = Field(Duration("2m"), gt=0)
    """Maximum time until a server is ready."""
    lifetime: Duration = Field(Duration(0), ge=0)
    """Time after which the servers of `up` stop; 0: they run until they are stopped."""
