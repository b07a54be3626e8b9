"""``pulsebridge check --broker`` at real brokers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from bridge.inspect.broker.bench import Bench
from bridge.inspect.broker.check import BrokerFinding, BrokerReport, check_broker
from bridge.settings import Settings
from bridge.settings.mqtt import MqttSettings
from pulsebridge.local.ports import free_ports
from pulsebridge.local.processes import Server
from pulsebridge.local.stack import LocalStack
from tests.brokers.servers import BROKERS, end, started
from tests.support.raw_mqtt import RawMqtt, at_broker
from tests.support.secured import mosquitto
from tests.support.waiting import patient

MESSAGES = 1200


def check(port: int, *, messages: int = MESSAGES, **mqtt: str) -> BrokerReport:
    settings = Settings(mqtt=MqttSettings(port=port, **mqtt))
    return check_broker(settings, "mqtt", settings.mqtt, messages=messages)


def by_name(report: BrokerReport) -> dict[str, BrokerFinding]:
    return {one.name: one for one in report.findings}


def in_state(report: BrokerReport, *states: str) -> dict[str, str]:
    """What is in one of these states, and why."""
    return {one.name: one.result for one in report.findings if one.state in states}


@contextmanager
def running(name: str, folder: Path) -> Iterator[tuple[list[int], list[Server]]]:
    """A broker of the page; the servers may be replaced meanwhile."""
    broker = BROKERS[name]
    if broker.version() is None:
        pytest.skip(f"{broker.title} is not installed")
    ports = free_ports(3)
    servers = started(broker, folder, ports)
    try:
        yield ports, servers
    finally:
        end(servers, kill=True)


@pytest.mark.stack
def test_artemis_confirms_a_message_without_a_subscriber(stack: LocalStack) -> None:
    report = check(stack.mqtt_port)
    found = by_name(report)
    assert in_state(report, "failed") == {}
    assert report.left_behind == ()
    assert found["versions"].result == "accepts 3.1, 3.1.1, 5"
    assert "push.confirm: device" in found["no subscribers"].follows[0]
    assert found["queue"].result == f"all of {MESSAGES} messages are queued"
    assert found["session, MQTT 5"].state == found["session, MQTT 3.1.1"].state == "ok"
    assert found["wildcards"].state == "ok"


def test_mosquitto_reports_an_absent_subscriber_and_limits_its_queues(tmp_path: Path) -> None:
    with running("mosquitto", tmp_path) as (ports, _):
        report = check(ports[0])
        with RawMqtt("127.0.0.1", ports[0], "look", clean=True) as look:
            assert look.subscribe_to_retained("pulsebridge-check/#") == []
    found = by_name(report)
    assert in_state(report, "failed", "not tried") == {}
    assert report.left_behind == ()
    assert found["no subscribers"].result == "PUBACK 0x10 without a subscriber, 0x00 with one"
    assert found["order"].result == "100 bursts of 8 messages arrive in order"
    assert found["queue"].result.startswith(f"1000 of {MESSAGES} messages")
    assert "max_queued_messages" in found["queue"].follows[0]


@pytest.mark.long
def test_rabbitmq_lacks_mqtt_5(tmp_path: Path) -> None:
    with running("rabbitmq", tmp_path) as (ports, _):
        report = check(ports[0], messages=100, protocol="3.1.1")
    found = by_name(report)
    assert in_state(report, "failed") == {}
    if "5" not in found["versions"].result:
        assert any("`push.confirm: device`" in one for one in found["versions"].follows)
        assert {"limits", "session, MQTT 5", "no subscribers"} <= in_state(report, "not tried").keys()
    assert found["session, MQTT 3.1.1"].state == "ok"
    assert "one with a dot" not in found["wildcards"].result.split(";")[0]


@pytest.mark.parametrize("kill", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_restart_shows_what_the_broker_keeps(kill: bool, tmp_path: Path) -> None:
    with running("mosquitto", tmp_path) as (ports, servers):
        asked = []

        def restart(line: str) -> None:
            asked.append(line)
            if line.startswith("Restart"):
                end(servers, kill=kill)
                servers[:] = started(BROKERS["mosquitto"], tmp_path, ports)

        settings = Settings(mqtt=MqttSettings(port=ports[0]))
        report = check_broker(
            settings,
            "mqtt",
            settings.mqtt,
            messages=1,
            restart_s=patient(60),
            report=restart,
        )
        found = by_name(report)["restart"]
        assert len(asked) == 2, asked
        assert report.left_behind == ()
        if kill:
            assert found.result == "session: no, queued messages: 0 of 3, retained message: no"
            assert found.follows[0].startswith("ingest: a restart of the broker loses messages")
        else:
            assert found.result == "session: yes, queued messages: 3 of 3, retained message: yes"
            assert found.state == "ok"


def test_what_an_access_list_denies_is_not_tried(tmp_path: Path) -> None:
    with mosquitto(tmp_path, acl="topic readwrite plant/#\n") as (port, _):
        report = check(port)
    assert report.ok
    assert report.left_behind == ()
    assert {"QoS", "session, MQTT 5", "retained", "queue"} <= in_state(report, "not tried").keys()
    denied = by_name(report)["order"]
    assert "0x87" in denied.result
    assert denied.follows[0].endswith("to write pulsebridge-check/#")


def test_a_broker_that_does_not_deliver_fails(tmp_path: Path) -> None:
    """Mosquitto confirms a subscription that its access list does not allow to read."""
    with mosquitto(tmp_path, acl="topic write pulsebridge-check/#\n") as (port, _):
        report = check(port, messages=10)
    assert not report.ok
    assert "confirmed, not delivered" in by_name(report)["QoS"].result
    assert report.findings[-1].name == "QoS"


def test_sessions_and_retained_messages_are_deleted(tmp_path: Path) -> None:
    with ExitStack() as stack:
        port, _ = stack.enter_context(mosquitto(tmp_path))
        mqtt = MqttSettings(port=port)
        bench = Bench(Settings(mqtt=mqtt), mqtt, messages=1)
        with bench.peer("kept", persistent=True) as peer:
            peer.subscribe(bench.topic("kept"))
            peer.publish(bench.topic("status"), b"x", retain=True)
        assert at_broker(mqtt, bench.client_id("kept"))
        assert bench.tidy() == []
        assert not at_broker(mqtt, bench.client_id("kept"))
        with RawMqtt("127.0.0.1", port, "look", clean=True) as look:
            assert look.subscribe_to_retained(bench.topic("#")) == []


def test_rights_below_its_own_topic_are_enough(tmp_path: Path) -> None:
    """So it publishes to no topic of others and receives nothing of theirs."""
    with mosquitto(tmp_path, acl="topic readwrite pulsebridge-check/#\n") as (port, _):
        report = check(port, messages=10)
    assert in_state(report, "failed", "not tried") == {}


def test_without_a_broker_the_exit_code_is_1() -> None:
    (port,) = free_ports(1)
    done = subprocess.run(
        [
            sys.executable, "-c", "from pulsebridge.cli.app import main; main()", "check", "--broker", "--json",
            "--set", f"mqtt.port={port}",
        ],
        capture_output=True, text=True, timeout=patient(120), check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    (one,) = answer["brokers"]
    assert (answer["ok"], one["ok"]) == (False, False)
    assert [finding["state"] for finding in one["findings"]] == ["failed"]
    assert "mqtt.host" in one["findings"][0]["follows"][0]
