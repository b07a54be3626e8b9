"""``pulsebridge subscriptions`` and ``pulsebridge offsets`` on real Pulsar and a checkpoint that Spark wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from bridge.errors import ConfigError, DataLossError, FencedError
from bridge.pulsar.provisioning_plan import subscription_step
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.cli.subscriptions import register
from sources.batch import batch_tasks
from sources.options import parse
from sources.reading import read_range
from sources.stream import StreamPlanner
from tests.support import source_driver
from tests.support.pulsar_topics import TestTopic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.stack


def run(settings: PulsarSettings, *arguments: str) -> Result:
    app = typer.Typer()
    register(app)
    names = ("service_url", "admin_url", "namespace", "system_namespace")
    sets = [f"pulsar.{name}={getattr(settings, name)}" for name in names]
    given = [*arguments, *(word for one in sets for word in ("--set", one))]
    return CliRunner().invoke(app, given if arguments[1] != "show" else list(arguments))


def listed(settings: PulsarSettings) -> Any:
    done = run(settings, "subscriptions", "list", "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def values(topic: TestTopic, **options: str) -> list[bytes]:
    tasks = batch_tasks(parse(topic.options(columns="value", **options), streaming=False))
    return [v for task in tasks for batch in read_range(task) for v in batch.column("value").to_pylist()]


def test_what_a_query_left_is_listed_and_deleted_but_not_while_it_runs(topic: TestTopic) -> None:
    topic.publish([b"1", b"2", b"3"], "unbatched")
    topic.admin.do(subscription_step(topic.partition(), "of-another-client"))
    options = parse(topic.options(predefinedSubscription="q", startingOffsets="earliest"), streaming=True)
    query = StreamPlanner(options)
    try:
        query.initial_offset()
        (found,) = listed(topic.settings)
        assert found["backlog_bytes"] > 0
        assert found | {"backlog_bytes": 0} == {
            "subscription": "q", "topic": topic.name, "partitions": 2, "in_use": True, "committed": False,
            "startingOffsets": "earliest", "backlog": 3, "backlog_bytes": 0,
        }  # fmt: skip
        refused = run(topic.settings, "subscriptions", "delete", "q", "--yes")
        assert isinstance(refused.exception, FencedError)
        assert "in use by a running query — stop the query first" in str(refused.exception)
    finally:
        query.close()
    assert "q  " + topic.name in run(topic.settings, "subscriptions", "list").stdout
    asked = run(topic.settings, "subscriptions", "delete", "q")
    assert asked.exit_code == 1, "not confirmed"
    assert listed(topic.settings)[0]["in_use"] is False
    done = run(topic.settings, "subscriptions", "delete", "q", "--yes", "--topic", topic.name)
    assert done.exit_code == 0, done.output
    assert listed(topic.settings) == []
    assert topic.hold("of-another-client"), "not ours, not deleted"
    again = run(topic.settings, "subscriptions", "delete", "of-another-client", "--yes")
    assert isinstance(again.exception, ConfigError)


@pytest.mark.spark
@pytest.mark.long
def test_a_checkpoint_is_shown_and_a_query_goes_on_from_a_time(
    spark: SparkSession, topic: TestTopic, tmp_path: Path
) -> None:
    topic.publish([b"old 0"], "unbatched", 0)
    topic.publish([b"old 1"], "unbatched", 1)
    stream = topic.options(predefinedSubscription="q", startingOffsets="earliest")
    source_driver.run(spark, stream, tmp_path)
    checkpoint = str(tmp_path / "checkpoint")
    shown = run(topic.settings, "offsets", "show", checkpoint).stdout
    assert "batch 0 is committed" in shown
    assert f"{topic.partition(1)}  next entry {topic.ledgers(1)[0]}:1" in shown
    state = json.loads(run(topic.settings, "offsets", "show", checkpoint, "--json").stdout)
    assert (state["committed"], state["planned"]) == (0, 0)
    assert state["end"][0]["t"][topic.partition(0)] == [topic.ledgers(0)[0], 1]
    topic.publish([b"new 0", b"later 0"], "unbatched", 0)
    headers = topic.admin.entry_headers(topic.partition(0), topic.ledgers(0)[0], 1)[1]
    planned = run(topic.settings, "offsets", "plan", "--at", headers["x-pulsar-publish-time"], checkpoint)
    assert planned.exit_code == 0, planned.output
    assert f"{topic.partition(1)}: nothing was published since" in planned.stderr
    assert values(topic, startingOffsets=planned.stdout.strip()) == [b"new 0", b"later 0"]
    (log,) = (tmp_path / "checkpoint" / "offsets").glob("0")
    log.write_text(log.read_text().replace('"cluster": "standalone"', '"cluster": "elsewhere"'))
    log.with_name(f".{log.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum, where Spark keeps one
    foreign = run(topic.settings, "offsets", "plan", "--at", "1h", checkpoint)
    assert isinstance(foreign.exception, DataLossError)
    assert "made on Pulsar cluster 'elsewhere', this is 'standalone'" in str(foreign.exception)
    with pytest.raises(Exception, match=r"made on Pulsar cluster 'elsewhere'.*start with a new checkpoint"):
        source_driver.run(spark, stream, tmp_path)
