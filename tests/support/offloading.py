"""Pulsar with tiered storage: its offloaders, which its distribution leaves out, and a folder that they write to.

Offloaded ledgers are deleted from BookKeeper at once, so that each reader reads them from the tier.
"""

from __future__ import annotations

from pathlib import Path

from bridge.pulsar.admin import rest_path
from bridge.settings import Settings
from bridge.user_folders import default_cache_dir
from pulsebridge.downloads import distributions
from pulsebridge.downloads.distributions import Distribution
from pulsebridge.downloads.ivy import Artifact
from pulsebridge.downloads.preflight import find_java
from tests.support.pulsar_topics import TestTopic
from tests.support.waiting import poll_for

__all__ = ["offload", "offloading", "tier"]

_OFFLOADERS = Distribution(
    "Apache Pulsar's offloaders",
    Artifact("org.apache.pulsar", "pulsar-offloader-distribution", "4.0.8", "tar.gz", "bin"),
    62_028_727,
    "f0e98550b99271c02863eb91cb250b580524e198669ff14ec8341f2eadad886abb54a0f593449350b2a60672e626bead"
    "6bd813179788bc7e938ff56a2b28e0a7",
    "apache-pulsar-offloaders-4.0.8",
)
_PROFILE = {
    "io.file.buffer.size": "4096",
    "io.seqfile.compress.blocksize": "1000000",
    "io.seqfile.compression.type": "BLOCK",
    "io.map.index.interval": "128",
}


def tier(folder: Path) -> Path:
    """Return where a Pulsar below ``folder`` offloads to."""
    return folder / "tier"


def offloading(folder: Path) -> dict[str, str]:
    """Return the keys of Pulsar's configuration by which it offloads to ``tier(folder)``; fetches what that needs."""
    java, _ = find_java()
    assert java is not None
    cache = Settings().local.cache_dir or default_cache_dir()
    (home,) = distributions.ensure([_OFFLOADERS], cache=cache, java=java.home)
    profile = folder / "core-site.xml"
    options = _PROFILE | {"fs.defaultFS": tier(folder).as_uri()}
    properties = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>" for name, value in options.items()
    )
    profile.write_text(f"<configuration>{properties}</configuration>")
    return {
        "offloadersDirectory": str(home / "offloaders"),
        "narExtractionDirectory": str(folder / "unpacked"),
        "managedLedgerOffloadDriver": "filesystem",
        "fileSystemProfilePath": str(profile),
        "managedLedgerOffloadDeletionLagMs": "0",
        "managedLedgerDataReadPriority": "tiered-storage-first",
    }


def offload(topic: TestTopic, partition: int = 0) -> list[int]:
    """Offload all closed ledgers of a partition, and wait until BookKeeper has them no more. Returns their ids."""
    name = topic.partition(partition)
    path = f"/{rest_path(name)}/offload"
    *closed, last = topic.ledgers(partition)
    topic.admin.request("PUT", path, body={"ledgerId": last, "entryId": 0, "partitionIndex": -1})

    def done() -> bool:
        state = topic.admin.request("GET", path)
        assert state["status"] != "ERROR", state
        return bool(state["status"] == "SUCCESS")

    poll_for(done, 60, "the ledgers to be offloaded")
    stats = topic.admin.internal_stats(name)
    assert [ledger["ledgerId"] for ledger in stats["ledgers"] if ledger["offloaded"]] == closed
    return closed
