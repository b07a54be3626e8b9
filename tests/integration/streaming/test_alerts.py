"""Alerts from the source: the same commands after restarts and crashes, conditions in SQL, and where their commands go."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bridge.errors import ConfigError
from bridge.settings import PulsarSettings, Settings, StreamingSettings
from pulsebridge.local.stack import LocalStack
from sinks.columns import COMMAND_COLUMNS
from streaming import pipelines as dp
from streaming.alerts import declare_alerts
from streaming.evaluation import command_id
from streaming.job import Job
from streaming.reading import Reader
from tests.support.alerts_world import AlertsWorld, declared
from tests.support.pulsar_topics import topic_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.stack, pytest.mark.spark]

THRESHOLD = """
alerts:
  - {name: low, metric: glucose, kind: below, limit: 70, clear: 90, notify_cleared: true}
  - {name: falling, metric: glucose, kind: falling, per_minute: 3, to: none}
  - {name: quiet, kind: silence, after: 10m}
"""
EXAMPLES = Path(__file__).parents[3] / "examples"
DAMP = EXAMPLES / "damp.yaml"


@pytest.fixture
def world(
    spark: SparkSession,
    stack: LocalStack,
    namespaces: PulsarSettings,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[AlertsWorld]:
    """A topic and tables of this test's own; the test's parameter is the text of the rules, or an example's file."""
    example = isinstance(request.param, Path)
    rules = request.param if example else tmp_path / "rules.yaml"
    if not example:
        rules.write_text(request.param, encoding="utf-8")
    streaming = StreamingSettings(root=str(tmp_path / "lakehouse"), alerts=rules, topics=("messages",))
    if example:
        modules = (str(EXAMPLES / "climate.py"),)
        streaming = streaming.model_copy(update={"built_in": ("alerts",), "modules": modules})
    pulsar = namespaces.model_copy(update={"command_partitions": 2})
    settings = Settings(pulsar=pulsar, streaming=streaming)
    with topic_of(settings.pulsar, 2, "messages") as topic:
        yield AlertsWorld(spark, settings, topic)


@pytest.mark.thorough
@pytest.mark.parametrize("world", [THRESHOLD], indirect=True)
def test_h19_redelivery_and_a_batch_run_again_give_the_same_commands(world: AlertsWorld) -> None:
    world.arrive("b", "b-1", 1, metric="glucose", value=100)
    world.run()
    for minute, value in ((1, 90), (2, 85), (3, 60)):
        world.arrive("a", f"a-{minute}", minute, metric="glucose", value=value)
    world.run()
    assert world.reported() == ["falling raised a-2", "falling raised a-3", "low raised a-3"]
    (first,) = world.commands()
    assert first.command_id == command_id("low", "a", "a-3")
    assert (first.device, first.mqtt_topic, first.qos, first.retain) == ("a", "devices/a/commands", 1, False)
    assert first.expires_at_ms * 1000 - first.emitted_at_us == pytest.approx(3600e6, abs=1000)
    body = json.loads(first.payload)
    assert body == {
        "command_id": first.command_id, "rule": "low", "state": "raised", "device": "a", "reading_id": "a-3",
        "value": 60.0, "message": "glucose of a is 60", "ts": "2026-01-02T11:03:00.000Z",
    }  # fmt: skip
    low = world.alerts()[2]
    assert (low["table"], low["value"], low["to_device"]) == ("readings", 60.0, "a")
    assert (low["command_id"], low["payload"]) == (first.command_id, first.payload)
    assert low["_position"]["ledger"] >= 0
    assert [row["to_device"] for row in world.alerts()[:2]] == [None, None]

    world.forget_last_commit("alerts-readings")  # as after a crash between writer and commit
    world.run()
    assert [(one.command_id, one.payload) for one in world.commands()] == 2 * [(first.command_id, first.payload)]
    assert len(world.alerts()) == 3

    # the low reading comes again (QoS 1), with one that is still low, and a device that takes no commands
    world.arrive("a", "a-3", 3, metric="glucose", value=60)
    world.arrive("a", "a-4", 4, metric="glucose", value=59)
    world.arrive("c", "c-1", 1, metric="glucose", value=50, takes=False)
    world.run()
    assert world.reported() == ["falling raised a-2", "falling raised a-3", "low raised c-1", "low raised a-3"]
    # state outlived the restarts: back at clear and below again
    world.arrive("a", "a-6", 6, metric="glucose", value=69)
    world.arrive("a", "a-5", 5, metric="glucose", value=95)
    world.run()
    low = ["low raised c-1", "low raised a-3", "low cleared a-5", "low raised a-6"]
    assert world.reported() == ["falling raised a-2", "falling raised a-3", "falling raised a-6", *low]
    assert Counter(one.command_id for one in world.commands()) == {
        command_id("low", "a", "a-3"): 2,
        command_id("low", "a", "a-5", cleared=True): 1,
        command_id("low", "a", "a-6"): 1,
    }


@pytest.mark.thorough
@pytest.mark.parametrize("world", [THRESHOLD], indirect=True)
def test_silence_is_reported_without_a_message_of_the_device_and_a_repeated_batch_reports_it_again(
    world: AlertsWorld,
) -> None:
    world.arrive("a", "a-1", 0, metric="glucose", value=100)
    world.run()
    world.arrive("b", "b-1", 20, metric="other", value=100)  # a metric that no rule names moves the clock
    world.run()
    assert world.reported() == ["quiet raised a-1"]
    world.forget_last_commit("alerts-readings")
    world.run()
    assert world.reported() == ["quiet raised a-1"]
    assert {one.command_id for one in world.commands()} == {command_id("quiet", "a", "a-1")}
    # a reading that came before the watermark is not late for that
    world.arrive("a", "a-2", 21, metric="glucose", value=80)
    world.arrive("c", "c-1", 18, metric="glucose", value=50)
    world.run()
    assert world.reported() == ["low raised c-1", "quiet raised a-1", "quiet cleared a-2"]


@pytest.mark.thorough
@pytest.mark.parametrize("world", [DAMP], indirect=True)
def test_walk_c_a_condition_over_two_columns_alerts_commands_the_device_another_or_none(
    world: AlertsWorld,
) -> None:
    def climate(device: str, minute: int, **values: float) -> None:
        topic = f"zigbee2mqtt/{device}"
        world.arrive(device, f"{device}-{minute}", minute, mqtt_topic=topic, **values)

    def reported() -> list[str]:
        return [f"{a['rule']} {a['state']} {a['device']}-{a['event_time'].minute}" for a in world.alerts()]

    climate("s1", 1, humidity=60.0, temperature=15.0)
    climate("s1", 2, humidity=80.0, temperature=15.0)
    climate("s1", 3, humidity=80.0, temperature=15.0)
    climate("s1", 4, humidity=80.0)  # no temperature: null changes nothing
    climate("s2", 1, humidity=90.0, temperature=25.0)
    world.arrive("s2", "broken", 1, humidity=90.0, temperature=15.0)  # of another topic
    world.run()
    first = ["blink raised s1-2", "damp raised s1-2", "damp raised s1-3", "fan raised s1-2"]
    assert reported() == first
    blink, damp, _, fan = world.alerts()
    assert (damp["message"], damp["to_device"], damp["table"]) == ("80.0 % at 15.0 °C", None, "climate")
    assert (blink["to_device"], blink["command_topic"]) == ("s1", "devices/s1/commands")
    assert blink["payload"] == b'{"led": "blink", "because": 80.0}'
    assert (fan["device"], fan["to_device"], fan["payload"]) == ("s1", "fan-1", b'{"state":"ON"}')
    assert (fan["expires_at"] - fan["created_at"]).total_seconds() == 600

    climate("s1", 5, humidity=50.0, temperature=15.0)
    world.run()
    assert reported() == [*first, "fan cleared s1-5"]
    commands = [(one.device, one.mqtt_topic, one.payload) for one in world.commands()]
    assert sorted(commands) == [
        ("fan-1", "zigbee2mqtt/fan-1/set", b'{"state":"OFF"}'),
        ("fan-1", "zigbee2mqtt/fan-1/set", b'{"state":"ON"}'),
        ("s1", "devices/s1/commands", b'{"led": "blink", "because": 80.0}'),
    ]


EACH = """
alerts:
  - name: each
    kind: sql
    condition: value > 70
    message: "{metric} of {device}: {value}"
  - name: room
    table: climate
    kind: sql
    condition: humidity > 70
    to: {sql: "concat('fan-', room)"}
    command_topic: "rooms/{room}/fan"
    payload: {sql: "unhex('00FF')"}
"""


@pytest.mark.thorough
@pytest.mark.parametrize("world", [EACH], indirect=True)
def test_rules_without_state_evaluate_each_row_and_need_neither_state_nor_shuffle(
    world: AlertsWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = declared(world.settings)
    flows = ["alerts-climate-each", "alerts-readings-each", "alerts"]
    assert [name for name in pipeline.flows if name.startswith("alerts")] == flows
    world.arrive("a", "low", 3, metric="glucose", value=10)
    world.run()
    for n in (1, 2):
        world.arrive("a", f"a-{n}", n, metric="glucose", value=80 + n)
    world.arrive("s", "s-1", 1, humidity=80.0, room="bath")
    world.arrive("s", "s-2", 2, humidity=80.0)  # no room: SQL gives no device
    world.run()
    assert world.reported() == [
        "each raised a-1|glucose",
        "each raised a-2|glucose",
        "room raised s-1",
        "room raised s-2",
    ]
    found = world.alerts()
    assert (found[0]["message"], found[0]["value"]) == ("glucose of a: 81.0", 81.0)
    assert found[0]["command_id"] == command_id("each", "a", "a-1|glucose")
    assert [row["to_device"] for row in found] == ["a", "a", "fan-bath", None]
    commands = {one.device: one for one in world.commands()}
    assert (commands["fan-bath"].mqtt_topic, commands["fan-bath"].payload) == ("rooms/bath/fan", b"\x00\xff")
    assert {one.command_id for one in world.commands()} == {row["command_id"] for row in found if row["to_device"]}

    for flow in flows:
        world.forget_last_commit(flow)
    world.run()
    assert len(world.alerts()) == 4
    assert sorted(Counter(one.command_id for one in world.commands()).values()) == [2, 2, 2]
    for flow in flows[:2]:
        frame = Reader(world.spark, world.settings, pipeline).frame(pipeline.flows[flow])
        assert [(f.name, f.dataType.simpleString()) for f in frame.schema] == [
            *(one for one in COMMAND_COLUMNS if one[0] not in ("group", "broadcast", "link")),
            ("alert", "binary"),
        ]
        frame.explain()
        plan = capsys.readouterr().out
        assert "Exchange" not in plan
        assert "State" not in plan


LOW = "- {name: low, metric: glucose, kind: below, limit: 70, clear: 90, notify_cleared: true}"
HUMID = "- {name: humid, table: climate, column: humidity, kind: above, limit: 70}"


@pytest.mark.thorough
@pytest.mark.parametrize("world", ["alerts:"], indirect=True)
def test_rules_come_and_go_by_an_edit_and_a_restart_and_the_state_of_the_others_stays(
    world: AlertsWorld,
) -> None:
    def run_with(*rules: str) -> list[str]:
        assert world.settings.streaming.alerts is not None
        world.settings.streaming.alerts.write_text("\n  ".join(["alerts:", *rules]), encoding="utf-8")
        world.run()
        return world.reported()

    def arrive(minute: int, glucose: float, humidity: float) -> None:
        world.arrive("a", f"g-{minute}", minute, metric="glucose", value=glucose)
        world.arrive("a", f"h-{minute}", minute, humidity=humidity)

    arrive(1, 60, 60.0)
    assert run_with(LOW) == ["low raised g-1"]
    arrive(2, 60, 80.0)  # still low: a rule on another table takes nothing from the first one's state
    assert run_with(LOW, HUMID) == ["humid raised h-2", "low raised g-1"]
    arrive(3, 95, 80.0)
    assert run_with(HUMID) == ["humid raised h-2", "low raised g-1"]
    arrive(4, 60, 60.0)  # what came while its rule was out was not lost
    after = ["humid raised h-2", "low raised g-1", "low cleared g-3", "low raised g-4"]
    assert run_with(HUMID, LOW) == after
    arrive(5, 60, 80.0)
    steep = HUMID.replace("limit: 70", "limit: 90")  # changed: 80 is not too much any more
    assert run_with(LOW, steep) == after
    arrive(6, 60, 95.0)
    reported = [*after[:1], "humid raised h-6", *after[1:]]
    assert run_with(LOW, steep) == reported
    ids = Counter(one.command_id for one in world.commands())
    assert ids == dict.fromkeys((row["command_id"] for row in world.alerts()), 1)
    assert len(ids) == len(reported)


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("point", "written"),
    [pytest.param("sink_before_task", 1, marks=pytest.mark.thorough), ("sink_after_task", 2)],
)
@pytest.mark.parametrize("world", [THRESHOLD], indirect=True)
def test_a_driver_killed_after_each_step_loses_and_doubles_no_alert(
    world: AlertsWorld, point: str, written: int
) -> None:
    world.arrive("d", "d-1", 1, metric="glucose", value=60)
    assert world.killed_at(point) != 0
    world.run()
    wanted = command_id("low", "d", "d-1")
    assert [row["command_id"] for row in world.alerts()] == [wanted]
    assert Counter(one.command_id for one in world.commands()) == {wanted: written}


@pytest.mark.parametrize("world", ["alerts: []"], indirect=True)
def test_a_function_of_the_users_that_returns_commands_is_a_flow(world: AlertsWorld) -> None:
    with dp.declaring(dp.Pipeline()) as pipeline:

        @dp.commands
        def blink() -> DataFrame:
            return dp.messages().selectExpr(
                "concat(ledger_id, '-', entry_id, '-', partition) AS command_id",
                "device",
                "command_topic AS mqtt_topic",
                "payload",
            )

        declare_alerts(world.settings)
    pipeline.check()
    assert list(pipeline.flows) == ["blink"]
    world.arrive("a", "a-1", 1)
    world.arrive("b", "b-1", 1)
    for _ in range(2):
        job = Job(world.spark, world.settings, pipeline)
        job.prepare()
        job.run(threading.Event(), available_now=True)
    assert sorted((one.device, one.mqtt_topic) for one in world.commands()) == [
        ("a", "devices/a/commands"),
        ("b", "devices/b/commands"),
    ]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("table: nowhere, condition: x", "alerts[0].table (rule r): 'nowhere': it does not exist — existing tables: climate"),
        ("table: hourly, condition: x", "alerts[0].table (rule r): 'hourly': messages do not fill it"),
        ("table: climate, condition: humidty > 1", "alerts[0].condition (rule r): 'humidty > 1': [UNRESOLVED_COLUMN"),
        ("table: climate, condition: 'humidity >'", "alerts[0].condition (rule r): 'humidity >': [PARSE_SYNTAX_ERROR]"),
        ("table: climate, condition: humidity", "alerts[0].condition (rule r): humidity is not a condition but double"),
        ("table: climate, condition: sum(humidity) > 1", "alerts[0].condition (rule r): 'sum(humidity) > 1': ["),
        ("table: climate, condition: 'true', payload: 'x{humidty}'", "{humidty}: 'climate' has no such column — it has"),
        ("table: climate, condition: 'true', payload: {sql: nope(1)}", "alerts[0].payload (rule r): 'nope(1)': [UNRESOLVED"),
        ("table: climate, condition: 'true', payload: {sql: struct(humidity)}", "use to_json(...)"),
        ("table: climate, condition: 'true', metric: m", "'climate' has no columns metric and value"),
        ("kind: above, limit: 1, table: climate, column: room", "alerts[0].column (rule r): room is not a number but string"),
        ("kind: above, limit: 1, table: climate, column: rooom", "alerts[0].column (rule r): 'rooom': [UNRESOLVED"),
        ("kind: above, limit: 1, table: climate, metric: m", "'climate' has no columns metric and value"),
        ("table: anonymous, condition: 'true'", "'anonymous' has no column that names the device"),
    ],
)  # fmt: skip
def test_what_will_not_do_stops_the_job_at_its_start_in_one_line(
    spark: SparkSession, tmp_path: Path, text: str, error: str
) -> None:
    path = tmp_path / "rules.yaml"
    kind = "" if text.startswith("kind") else "kind: sql, "
    path.write_text(f"alerts: [{{name: r, {kind}{text}}}]")
    settings = Settings(streaming=StreamingSettings(root=str(tmp_path / "lakehouse"), alerts=path))

    def stream(*columns: str) -> DataFrame:
        return spark.readStream.format("rate").load().selectExpr(*columns)

    def run() -> None:
        with dp.declaring(dp.Pipeline()) as pipeline:

            @dp.table
            def climate() -> DataFrame:
                return stream("'d' AS device", "CAST(value AS string) AS reading_id", "1.0D AS humidity", "'r' AS room")

            @dp.table(device_column=None)
            def anonymous() -> DataFrame:
                return stream("1.0D AS humidity")

            @dp.materialized_view(keys=["device"])
            def hourly() -> Any:
                return dp.read("climate").groupBy("device").count()

            declare_alerts(settings)
        job = Job(spark, settings, pipeline, [name for name in pipeline.flows if name.startswith("alerts")])
        job.prepare()
        job.run(threading.Event(), available_now=True)

    with pytest.raises(ConfigError) as caught:
        run()
    assert error in str(caught.value)
    assert str(caught.value).startswith(f"rules file {path}: ")
    assert "\n" not in str(caught.value)
    assert spark.streams.active == []
