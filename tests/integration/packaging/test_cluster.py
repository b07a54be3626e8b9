"""The source on clusters, from the packed file alone: a local cluster, and a standalone one of processes.

The checkout and its environment are hidden from driver and executors, and no code calls ``sources.register``.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulsar
import pytest
import yaml

from bridge import contract
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.provisioning import provision_commands
from bridge.settings.loading import conf_path
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.downloads.spark_jars import delta_jars
from pulsebridge.job_files import job_files
from pulsebridge.submission import Target, line, write_files
from tests.support import cluster_job
from tests.support.bronze_rows import reading
from tests.support.delta_rows import delta_rows
from tests.support.folders import own_folder
from tests.support.pulsar_topics import topic_of
from tests.support.spark_cluster import SparkHome, standalone
from tests.support.waiting import patient

ROOT = Path(__file__).resolve().parents[3]

EVERYWHERE = os.environ.get("TEST_CLUSTERS") == "all"
MASTERS = ["standalone", *(["local-cluster[2,1,1024]"] if EVERYWHERE else [])]

QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Executors that live for seconds."""

pytestmark = [pytest.mark.stack, pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def packed() -> Iterator[Path]:
    """The packed file in a folder of its own."""
    from pulsebridge.packing import pack

    with own_folder("pack") as folder:
        yield pack(folder / "pulsebridge.pex", compress=False)


@dataclass(frozen=True)
class Cluster:
    """A standalone cluster of two workers, its Spark, and where the packed file is unpacked."""

    folder: Path
    home: SparkHome
    url: str

    @property
    def unpacked(self) -> Path:
        """Where the executors unpack the packed file: once, as a machine of a cluster does."""
        return self.folder / "executors"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a client that submits to it."""
        return self.home.environment(PEX_ROOT=str(self.folder / "driver"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One cluster for all tests of this file."""
    with own_folder("cluster") as folder:
        home = SparkHome.made_in(folder)
        with standalone(home, folder) as url:
            yield Cluster(folder, home, url)


@pytest.mark.parametrize("master", MASTERS)
@pytest.mark.long
def test_stream_and_batch_give_each_message_once_from_the_packed_file_alone(
    master: str, packed: Path, cluster: Cluster, namespaces: PulsarSettings
) -> None:
    with own_folder("job") as folder, topic_of(namespaces, partitions=4) as topic:
        for number in range(4):
            kind = ("batched", "unbatched", "compressed", "chunked")[number]
            topic.publish([f"{number}-{n}".encode() for n in range(250)], kind, number)
        options = topic.options(predefinedSubscription="cluster", startingOffsets="earliest")
        url = cluster.url if master == "standalone" else master
        found = submitted(cluster, folder, url, packed, options | {"maxEntriesPerTrigger": "400"})
        wanted = sorted(f"{number}-{n}" for number in range(4) for n in range(250))
        assert found["stream"] == wanted
        assert found["batch"] == wanted
        assert len(found["batches"]) > 1, "a limit holds on a cluster, too"
        assert len({probe["cwd"] for probe in found["probes"]}) == 2, "both executors had tasks"
        for probe in found["probes"]:
            only_the_packed(probe, cluster)


@pytest.mark.long
def test_the_jobs_run_on_a_standalone_cluster_as_the_printed_line_says(
    packed: Path, cluster: Cluster, namespaces: PulsarSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bronze, readings, quarantine and alerts, by the files that ``pulsebridge package --for standalone`` writes; then on
    half the executors, where ``TEST_CLUSTERS=all``.
    """
    with PulsarAdmin(namespaces, timeout_s=30) as admin:
        admin.create_partitioned(namespaces.readings_topic("wearables"), 1)
        provision_commands(admin)
    publish_readings(namespaces, [100, 60, None])
    with own_folder("jobs") as folder:
        place = folder / "dist"
        place.mkdir()
        (place / packed.name).hardlink_to(packed)
        properties = folder / "properties"
        properties.write_text(
            conf_path("spark-defaults.conf").read_text(encoding="utf-8")
            + f"spark.executor.memory 1g\nspark.local.dir {folder / 'scratch'}\n"
            f"spark.executor.extraJavaOptions {QUICK}\n"
            "spark.sql.shuffle.partitions 2\n"
            f"spark.executorEnv.PEX_ROOT {cluster.unpacked}\n",
            encoding="utf-8",
        )
        wanted = {
            "pulsar": {
                name: getattr(namespaces, name)
                for name in ("service_url", "admin_url", "namespace", "system_namespace")
            },
            "streaming": {
                "root": str(folder / "tables"),
                "topics": ["wearables"],
                "alerts": "rules.yaml",
            },
        }
        low = {"name": "glucose-low", "metric": "glucose", "kind": "below", "limit": 70}
        monkeypatch.chdir(folder)
        Path("rules.yaml").write_text(yaml.safe_dump({"alerts": [low]}), encoding="utf-8")
        Path("plant.yaml").write_text(yaml.safe_dump(wanted), encoding="utf-8")
        files = job_files(Path("plant.yaml"))
        write_files(Target.standalone, place / packed.name, files=files, jars=[], properties=properties, job={})
        Path("rules.yaml").unlink()
        words = shlex.split(line(Target.standalone, packed, cluster.url, delta_jars()))
        run_to_the_end([*words, "--available-now"], cluster, place)
        assert rows_in(folder / "tables") == {"bronze": 3, "readings": 6, "quarantine": 1}
        assert commanded(namespaces) == ["glucose-low"]
        if EVERYWHERE:
            publish_readings(namespaces, [20], first=3)
            after = words.index("spark-submit") + 1
            one = [*words[:after], "--total-executor-cores", "1", *words[after:]]
            run_to_the_end([*one, "--available-now"], cluster, place)
            assert rows_in(folder / "tables") == {"bronze": 4, "readings": 9, "quarantine": 1}
            why = "the state of the device reaches the one executor, too: it is low already"
            assert commanded(namespaces) == ["glucose-low"], why


def run_to_the_end(words: list[str], cluster: Cluster, place: Path) -> None:
    """Submit with the arguments ``words`` from the folder ``place``, and wait for the end."""
    done = subprocess.run(
        words,
        cwd=place, env=cluster.environment, timeout=patient(600), check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]


def rows_in(tables: Path) -> dict[str, int]:
    """Return how many rows each table has."""
    return {name: len(delta_rows(tables / name, "device")) for name in ("bronze", "readings", "quarantine")}


def commanded(settings: PulsarSettings) -> list[str]:
    """Return the rules of all commands that are in Pulsar."""
    client = pulsar.Client(settings.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    reader = client.create_reader(settings.system_topic(contract.COMMANDS_TOPIC), pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(str(json.loads(reader.read_next(10_000).data())["rule"]))
    client.close()
    return sorted(found)


def publish_readings(settings: PulsarSettings, values: list[int | None], first: int = 0) -> None:
    """Publish readings of device a, as ingest would, the first value first; ``first`` is its number, None one that was
    cut.
    """
    client = pulsar.Client(settings.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(contract.partition_name(settings.readings_topic("wearables"), 0))
    for n, value in enumerate(values, first):
        message = reading("a", n, value)
        producer.send(
            message.payload[: 9 if value is None else None],
            partition_key="a",
            properties=message.properties,
            event_timestamp=message.arrival_ms,
        )
    client.close()


def submitted(cluster: Cluster, folder: Path, master: str, packed: Path, options: dict[str, str]) -> dict[str, Any]:
    """Submit the job as the docs say, from a folder with the packed file and the job, and return what it found."""
    from pulsebridge.packing import submit_words

    place = folder / "submit"
    place.mkdir()
    (place / packed.name).hardlink_to(packed)
    job = Path(shutil.copy(cluster_job.__file__, place))
    words = submit_words(packed, master, delta_jars())
    done = subprocess.run(
        [
            *words,
            "--properties-file", str(conf_path("spark-defaults.conf")),
            "--executor-memory", "1g",
            "--conf", f"spark.executor.extraJavaOptions={QUICK}",
            "--conf", f"spark.executorEnv.PEX_ROOT={cluster.unpacked}",
            "--conf", f"spark.local.dir={folder / 'scratch'}",
            job.name, json.dumps(options), str(folder),
        ],
        cwd=place, env=cluster.environment, timeout=patient(600), check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]
    found: dict[str, Any] = json.loads((folder / "found.json").read_text(encoding="utf-8"))
    return found


def only_the_packed(probe: dict[str, Any], cluster: Cluster) -> None:
    """Check what a task saw: packages from the packed file, pyspark from Spark, nothing of this checkout."""
    unpacked, home = str(cluster.unpacked), str(cluster.home.folder)
    assert probe["prefix"].startswith(unpacked)
    files = dict(probe["files"])
    assert files.pop("pyspark").startswith(home)
    assert all(file.startswith(unpacked) for file in files.values()), files
    assert not probe["tests"], "the checkout can be imported"
    assert str(probe["environment"]["VIRTUAL_ENV"]).startswith(unpacked)
    # Spark names one of its jars by where the link to it leads.
    folders = [Path(entry) for entry in probe["path"] if not entry.endswith(".jar")]
    assert not [entry for entry in folders if entry.is_relative_to(ROOT) or entry.is_relative_to(sys.prefix)]
