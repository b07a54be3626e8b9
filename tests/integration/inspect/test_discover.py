"""``pulsebridge topics discover`` at a real broker: what it prints, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

import pytest
import yaml

from bridge.mqtt.types import Message
from bridge.routing.rules import mapping_problems
from bridge.settings import Settings
from bridge.settings.ingest import IngestSettings
from bridge.settings.mqtt import MqttSettings
from pulsebridge.local.stack import LocalStack
from pulsebridge.topics.listening import listen
from pulsebridge.topics.proposing import PresetSigns, propose
from pulsebridge.topics.tree import TopicTree
from tests.support.ingest import device
from tests.support.stack import mqtt_settings
from tests.support.waiting import patient, poll_for

pytestmark = pytest.mark.stack


@pytest.mark.parametrize("protocol", ["3.1", "3.1.1", "5"])
def test_what_is_published_while_it_listens_is_counted_and_proposed(broker: LocalStack, protocol: str) -> None:
    mqtt = mqtt_settings(broker, protocol=protocol)
    root = mqtt.client_id
    tree, signs, enough = TopicTree(), PresetSigns(["tasmota"]), threading.Event()
    listened: list[float] = []

    def run() -> None:
        options = {"filters": [f"{root}/#"], "seconds": 120, "enough": enough}
        listened.append(listen(mqtt, tree, signs, **options))  # type: ignore[arg-type]

    with device(mqtt, "dev") as dev:
        dev.publish(f"{root}/press-0/state", b"on", retain=True)
        assert dev.flush()
        thread = threading.Thread(target=run, name="discover-under-test")
        thread.start()
        try:
            poll_for(lambda: tree.retained == 1, 30, "the retained message")
            for number in range(100):
                dev.publish(f"{root}/press-{number % 10}/temperature", b"%d" % number)
            assert dev.flush()
            poll_for(lambda: tree.messages >= 101, 30, "all messages")
        finally:
            enough.set()
            thread.join(patient(30))
        dev.publish(f"{root}/press-0/state", b"", retain=True)
        assert dev.flush()
    assert not thread.is_alive()
    assert listened[0] > 0
    assert (tree.messages, tree.topics.count) == (101, 11)
    (rule,) = propose(tree, signs.seen).routes
    assert (rule.filter, rule.device) == (f"{root}/+device/+metric", "{device}")


def test_the_command_prints_json_at_ctrl_c_and_needs_no_pulsar(stack: LocalStack) -> None:
    mqtt = mqtt_settings(stack)
    root = mqtt.client_id
    # no server listens on port 9 here
    process = discovering(
        mqtt,
        "--for",
        "10m",
        "--json",
        "--filter",
        f"{root}/#",
        "--set",
        "pulsar.admin_url=http://127.0.0.1:9",
    )
    topics = (f"{root}/w-0/glucose", f"{root}/w-1/glucose")
    out = output_after_twenty_messages(process, mqtt, f"{root}/#", topics, b'{"glucose": 90}')
    report = json.loads(out)
    assert 0 < report["messages"] <= 20
    assert report["routes"][0]["filter"].startswith(f"{root}/+device")
    assert mapping_problems(IngestSettings.model_validate(yaml.safe_load(report["yaml"])["ingest"])) == []
    assert report["tree"][0]["level"] == root
    (table,) = Settings.model_validate(yaml.safe_load(report["yaml"])).streaming.tables
    assert [one.fields for one in table.decoding] == ["glucose bigint"]


def output_after_twenty_messages(
    process: subprocess.Popen[str], mqtt: MqttSettings, watched: str, topics: tuple[str, str], payload: bytes
) -> str:
    """Publish to the topics in turn, then press Ctrl+C. Returns what the command printed."""
    try:
        assert process.stderr is not None
        assert f"on {watched} for 600 s" in process.stderr.readline()
        arrived: list[Message] = []
        with device(mqtt, "dev", on_message=arrived.append) as dev:
            dev.subscribe(watched)  # after discover, which is therefore sent each message before us
            for number in range(20):
                dev.publish(topics[number % 2], payload)
            poll_for(lambda: len(arrived) >= 20, 30, "the messages")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=patient(60))
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
    assert process.returncode == 0, err
    return out


def discovering(mqtt: MqttSettings, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-c", "from pulsebridge.cli.app import main; main()", "topics", "discover", *arguments),
            *("--set", f"mqtt.host={mqtt.host}", "--set", f"mqtt.port={mqtt.port}"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    )


def test_a_filter_that_is_none_is_refused_in_one_line(stack: LocalStack) -> None:
    process = discovering(mqtt_settings(stack), "--for", "1s", "--filter", "a/#/b")
    _, err = process.communicate(timeout=patient(60))
    assert process.returncode == 2
    assert "nothing may follow level 2" in err
    assert "Traceback" not in err


def test_h38_a_newline_in_a_topic_level_stays_within_the_comment(stack: LocalStack) -> None:
    # Artemis forwards control characters (MQTT-1.5.4-2 lets it); Mosquitto closes the connection of the device.
    mqtt = mqtt_settings(stack)
    ours = mqtt.client_id
    listener = "http:\n  port: 8088\n  host: 0.0.0.0\n  allow_anonymous: true"
    root = f"x\x1b[2J\n{listener}\nmqtt:\n  client_id: |\n   "  # which swallows the rest of the line
    process = discovering(mqtt, "--for", "10m", "--filter", f"+/{ours}/#")
    topics = (f"{root}/{ours}/set", f"{root}/{ours}/state")
    out = output_after_twenty_messages(process, mqtt, f"+/{ours}/#", topics, b"1")
    assert all(line.isprintable() for line in out.split("\n"))
    assert "has a level 'set'" in out
    pasted = yaml.safe_load("#" + out.partition("# proposed settings")[2])
    assert list(pasted) == ["ingest"]
    (rule,) = IngestSettings.model_validate(pasted["ingest"]).routes
    assert rule.filter.startswith(f"{root}/")
