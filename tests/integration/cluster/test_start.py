"""A process starts while one named host is down, or hangs: a broker that hangs accepts connections (H52, H53)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from bridge.settings import Settings
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.cli import check, local
from pulsebridge.local.cluster import LocalCluster
from pulsebridge.local.stack import LocalStack
from sources.batch import batch_tasks
from sources.options import parse
from sources.reading import read_range
from tests.support.cluster import frozen, killed
from tests.support.ingest import device, ingest_process, ingest_settings, publish_ids, rule_for, wait_for
from tests.support.push import Devices, PushProcess, command, provision, push_arguments, push_settings, write_commands
from tests.support.push_commands import asked
from tests.support.reading_back import patiently
from tests.support.stack import mqtt_settings, provisioned
from tests.support.waiting import poll_for

pytestmark = [pytest.mark.stack, pytest.mark.thorough, pytest.mark.timeout(600)]

Away = Callable[[LocalCluster, str], AbstractContextManager[None]]


@pytest.fixture(params=[killed, frozen], ids=["down", "hangs"], scope="module")
def without_first(request: pytest.FixtureRequest, cluster_stack: LocalStack) -> Iterator[LocalStack]:
    """The cluster without the broker that its URLs name first; its topics have moved."""
    assert cluster_stack.cluster is not None
    away: Away = request.param
    with away(cluster_stack.cluster, "broker-0"):
        yield cluster_stack


@pytest.fixture
def namespaces(without_first: LocalStack) -> PulsarSettings:
    """Namespaces that were made without the first broker."""
    return provisioned(without_first)


def run(settings: Settings, *arguments: str) -> Result:
    app = typer.Typer()
    for one in (check, local):
        one.register(app)
    return CliRunner().invoke(app, [*arguments, *push_arguments(settings)])


def live(settings: PulsarSettings) -> PulsarSettings:
    """Return the settings without the host that is away: Pulsar's own client cannot do without."""
    return settings.model_copy(
        update={
            "service_url": "pulsar://" + settings.service_url.partition(",")[2],
            "admin_url": "http://" + settings.admin_url.partition(",")[2],
        }
    )


def test_ingest_and_the_source(without_first: LocalStack, namespaces: PulsarSettings, tmp_path: Path) -> None:
    mqtt = mqtt_settings(without_first)
    settings = ingest_settings(mqtt, namespaces, routes=(rule_for(mqtt.client_id),))
    confirmed: list[str] = []
    with ingest_process(settings, tmp_path), device(mqtt, "d") as dev:
        publish_ids(dev, [f"{mqtt.client_id}/{n}/t" for n in range(8)], 80, confirmed)
        wait_for(live(namespaces), 80)
    topic = namespaces.readings_topic("fleet")
    options = {"service.url": namespaces.service_url, "admin.url": namespaces.admin_url, "topic": topic}
    tasks = batch_tasks(parse(options, streaming=False))
    rows = [
        row for task in tasks for batch in read_range(replace(task, columns=("value",))) for row in batch.to_pylist()
    ]
    assert sorted(row["value"].decode() for row in rows) == sorted(confirmed)


def test_push_and_the_commands_that_inspect_it(
    without_first: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    settings = push_settings(namespaces, mqtt_settings(without_first), command_partitions=4)
    assert patiently(provision, settings) == 4  # an owner may have died just before
    commands = [command(settings, f"d{n}", n) for n in range(20)]
    with PushProcess(settings, tmp_path) as push, Devices(settings) as devices:
        push.owns(4)
        write_commands(settings.model_copy(update={"pulsar": live(settings.pulsar)}), commands)
        devices.await_all(commands)
        assert devices.check(commands) == 0
        poll_for(
            lambda: asked(settings, "commands", "show", "d3-3")["state"] in ("delivered", "answered"), 60, "its receipt"
        )
        status = run(settings, "status", "--json")
        assert '"serves": true' in status.stdout, status.output


def test_a_host_that_is_away_is_named(without_first: LocalStack, namespaces: PulsarSettings) -> None:
    assert without_first.cluster is not None
    place = without_first.cluster.url_of("broker-0").removeprefix("pulsar://")
    alone = namespaces.model_copy(update={"service_url": f"pulsar://{place}"})
    done = run(push_settings(alone, mqtt_settings(without_first)), "check")
    assert done.exit_code == 1
    assert place in done.output
