"""Messages from devices over a real MQTT broker into a real Pulsar, with what the contract says of them."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from bridge import contract
from bridge.contract.partitioning import partition_of
from bridge.dead_letters import HEAD_BYTES
from bridge.errors import TerminalError
from bridge.intake.provisioning import known_topics
from bridge.mqtt.device import DeviceClient
from bridge.mqtt.types import PublishProperties
from bridge.pulsar.admin import PulsarAdmin
from bridge.settings import Settings
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.local.stack import LocalStack
from tests.support.ingest import (
    IN_ORDER,
    by_key,
    dead_letters,
    device,
    first_copies,
    ingest_process,
    ingest_settings,
    publish_ids,
    rule_for,
    running_ingest,
    stored,
    wait_for,
)
from tests.support.stack import mqtt_settings
from tests.support.waiting import patient, poll_for

pytestmark = pytest.mark.stack


def counter(name: str, link: str) -> float:
    return REGISTRY.get_sample_value(f"pulsebridge_ingest_{name}_total", {"link": link}) or 0.0


@pytest.mark.parametrize("protocol", ["3.1", "3.1.1", "5"])
def test_a_message_has_its_topic_key_and_envelope(
    broker: LocalStack, namespaces: PulsarSettings, protocol: str
) -> None:
    mqtt = mqtt_settings(broker, protocol=protocol)
    root = mqtt.client_id
    user = (("b", "1"), ("a", "2"), ("b", "3"))
    properties = PublishProperties(user, "application/json", "answers/here", b"\x00\xff", 1, 600)
    with (
        running_ingest(ingest_settings(mqtt, namespaces, routes=(rule_for(root),))),
        device(mqtt, "dev") as dev,
    ):
        dev.publish(f"{root}/w-1/glucose", b"\x00\x01binary", properties=properties)
        assert dev.flush()  # Artemis may deliver the in-flight messages of one client in another order
        dev.publish(f"{root}/w-1/glucose", b"", qos=0)
        message, empty = wait_for(namespaces, 2)
    assert (message.payload, message.key) == (b"\x00\x01binary", "w-1")
    assert message.partition == partition_of("w-1", namespaces.partitions)
    envelope = message.properties
    assert envelope[contract.P_TOPIC] == f"{root}/w-1/glucose"
    assert (envelope[contract.P_RULE], envelope[contract.P_DEVICE], envelope[contract.P_LINK]) == (
        "fleet",
        "w-1",
        mqtt.client_id,
    )
    assert envelope[contract.P_COMMAND_TOPIC] == f"{root}-commands/w-1"
    assert (envelope[contract.P_QOS], envelope[contract.P_RETAIN], envelope[contract.P_PROTOCOL]) == (
        "1",
        "0",
        protocol,
    )
    assert message.event_ms > 1_600_000_000_000
    assert (empty.payload, empty.properties[contract.P_QOS]) == (b"", "0")
    if protocol == "5":
        assert contract.decode_user_properties(envelope[contract.P_USER]) == list(user)
        assert contract.decode_correlation(envelope[contract.P_CORRELATION]) == b"\x00\xff"
        assert envelope[contract.P_CONTENT_TYPE] == "application/json"
        assert envelope[contract.P_RESPONSE_TOPIC] == "answers/here"
        assert 0 < int(envelope[contract.P_EXPIRY]) <= 600


def test_what_cannot_be_written_is_a_dead_letter_and_the_rest_flows(
    broker: LocalStack, namespaces: PulsarSettings
) -> None:
    mqtt = mqtt_settings(broker)
    root = mqtt.client_id
    settings = ingest_settings(
        mqtt,
        namespaces,
        routes=(
            rule_for(root),
            rule_for(root, name="alone", filter=f"{root}/+device", topic="alone-{device}"),
        ),
        filters=(f"{root}/#",),
        limits={"message_size": "128KiB", "topics": 1},
    )
    with running_ingest(settings), device(mqtt, "dev") as dev:
        dev.publish(f"{root}/w-1/glucose", b"good")
        wait_for(namespaces, 1)  # its topic is the one there may be, and Artemis mixes up some for MQTT 5
        dev.publish(f"{root}/w-1/glucose", b"x" * 100_000)  # over the limit less the reserve
        dev.publish(f"{root}/w-0", b"the one topic of its rule")
        wait_for(namespaces, 1, "alone-w-0")
        dev.publish(f"{root}/w-1", b"one topic too many")
        dev.publish(f"{root}//glucose", b"no device")
        dev.publish(f"{root}/w-1/glucose", b"good too")
        assert [m.payload for m in wait_for(namespaces, 2)] == [b"good", b"good too"]
        dead = poll_for(lambda: found if len(found := dead_letters(namespaces)) >= 3 else None, 30, "dead letters")
        for name, expected in (("received", 6), ("stored", 6), ("acked", 6), ("dead_letters", 3)):
            poll_for(lambda name=name, expected=expected: counter(name, mqtt.client_id) == expected, 10, name)  # type: ignore[misc]
    reasons = {m.payload[:9]: m.properties[contract.P_DEAD_REASON] for m in dead}
    assert "bytes, the limit is" in reasons[b"x" * 9]
    assert "ingest.limits.topics is 1" in reasons[b"one topic"]
    assert "no text for its key" in reasons[b"no device"]
    large = next(m for m in dead if m.payload[:1] == b"x")
    assert (large.key, len(large.payload)) == ("w-1", 100_000)
    assert large.properties[contract.P_DEAD_TOPIC] == namespaces.readings_topic("fleet")
    assert large.properties[contract.P_TOPIC] == f"{root}/w-1/glucose"


def test_h5_what_pulsar_does_not_take_is_kept_in_chunks_and_far_above_its_head_is(
    broker: LocalStack, namespaces: PulsarSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    mqtt = mqtt_settings(broker)
    root = mqtt.client_id
    settings = ingest_settings(mqtt, namespaces, routes=(rule_for(root),), limits={"dead_letter_size": "8MiB"})
    above, far_above = bytes(range(256)) * 24 * 1024, bytes(range(256)) * 40 * 1024
    with running_ingest(settings), device(mqtt, "dev", window=1) as dev:
        for payload in (above, far_above, b"the rest flows"):
            dev.publish(f"{root}/w-1/big", payload)
        assert dev.flush(60)
        (flowing,) = wait_for(namespaces, 1)
        whole, head = poll_for(
            lambda: found if len(found := dead_letters(namespaces)) == 2 else None, 60, "the dead letters"
        )
        poll_for(lambda: counter("cut", mqtt.client_id) == 1, 10, "the one that counts as lost")
    assert flowing.payload == b"the rest flows"
    assert whole.payload == above  # more than Pulsar takes in one message: in chunks
    assert contract.P_DEAD_LENGTH not in whole.properties
    assert head.payload == far_above[: len(head.payload)]
    assert len(head.payload) == HEAD_BYTES
    assert head.properties[contract.P_DEAD_LENGTH] == str(len(far_above))
    assert head.properties[contract.P_DEAD_SHA256] == hashlib.sha256(far_above).hexdigest()
    assert whole.key == head.key == "w-1"
    assert "error" in capsys.readouterr().out.split("only its head is kept")[0].rsplit("\n", 1)[-1]


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
def test_h6_retained_messages_come_once_over_restarts(
    broker: LocalStack, namespaces: PulsarSettings, protocol: str
) -> None:
    mqtt = mqtt_settings(broker, protocol=protocol)
    root = mqtt.client_id
    settings = ingest_settings(mqtt, namespaces, routes=(rule_for(root),))
    topics = [f"{root}/w-{n}/state" for n in range(20)]
    with device(mqtt, "dev") as dev:
        for topic in topics:
            dev.publish(topic, b"retained", retain=True)
        assert dev.flush()
        for run in range(4):
            with running_ingest(settings):
                dev.publish(topics[0], b"live", retain=True)
                assert dev.flush()
                wait_for(namespaces, 20 + run + 1)
        more = rule_for(root, name="more", filter=f"{root}/+device/+metric/+x", topic="more")
        dev.publish(f"{root}/w-1/state/deep", b"retained", retain=True)
        assert dev.flush()
        with running_ingest(ingest_settings(mqtt, namespaces, routes=(settings.ingest.routes[0], more))):
            wait_for(namespaces, 1, "more")
        for topic in [*topics, f"{root}/w-1/state/deep"]:
            dev.publish(topic, b"", retain=True)  # leave nothing behind at the broker
        assert dev.flush()
    found = stored(namespaces, "fleet")
    replayed = [m for m in found if m.properties.get(contract.P_RETAINED) == "1"]
    assert sorted(m.properties[contract.P_TOPIC] for m in replayed) == sorted(topics)
    assert [m.payload for m in found if m not in replayed] == [b"live"] * 4
    (deep,) = stored(namespaces, "more")
    assert deep.properties[contract.P_RETAINED] == "1"


def test_retained_messages_can_be_skipped_and_live_ones_never_are(
    broker: LocalStack, namespaces: PulsarSettings
) -> None:
    mqtt = mqtt_settings(broker)
    root = mqtt.client_id
    with device(mqtt, "dev") as dev:
        dev.publish(f"{root}/w-1/state", b"old", retain=True)
        assert dev.flush()
        with running_ingest(ingest_settings(mqtt, namespaces, routes=(rule_for(root),), retained="skip")):
            dev.publish(f"{root}/w-1/state", b"live", retain=True)
            found = wait_for(namespaces, 1)
        dev.publish(f"{root}/w-1/state", b"", retain=True)
        assert dev.flush()
    assert [m.payload for m in found] == [b"live"]


def test_h8_a_thousand_commands_do_not_come_back_as_readings(broker: LocalStack, namespaces: PulsarSettings) -> None:
    mqtt = mqtt_settings(broker)
    root = mqtt.client_id
    filters = (f"{root}/#", f"{root}-commands/#")
    settings = ingest_settings(mqtt, namespaces, routes=(rule_for(root),), filters=filters, allow_loopback=True)
    origin = PublishProperties(user=((contract.ORIGIN_PROPERTY, contract.ORIGIN_PUSH),))
    with running_ingest(settings), device(mqtt, "dev") as dev:
        for number in range(500):
            dev.publish(f"{root}-commands/w-{number % 7}", b"command")
            dev.publish(f"{root}/w-{number % 7}/other", b"command", properties=origin)
            if number % 10 == 0:
                dev.publish(f"{root}/w-{number % 7}/glucose", b"reading")
        assert dev.flush()
        wait_for(namespaces, 50)
    found = stored(namespaces, "fleet")
    assert [m.payload for m in found] == [b"reading"] * 50
    with PulsarAdmin(namespaces) as admin:
        assert known_topics(admin) == [namespaces.readings_topic("fleet")]


def test_another_process_with_the_client_id_ends_ingest(stack: LocalStack, namespaces: PulsarSettings) -> None:
    """Artemis sends DISCONNECT 0x8E. Mosquitto 2.0.11 closes without it, which is no evidence (H50)."""
    mqtt = mqtt_settings(stack, protocol="5")
    settings = ingest_settings(mqtt, namespaces, routes=(rule_for(mqtt.client_id),))
    other = DeviceClient(mqtt, mqtt.client_id)  # reconnects without end, as the other process would
    with pytest.raises(TerminalError, match="another process uses the MQTT client id"):
        run_beside(other, settings)
    other.close()


def run_beside(other: DeviceClient, settings: Settings) -> None:
    with running_ingest(settings) as service:
        other.connect()
        poll_for(service.ended.is_set, 60, "ingest to give up")


def test_h9_one_signal_drains_and_the_exit_code_is_0(
    broker: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    """Stopped in mid-flow, three times: exit code 0, and what the broker took is in Pulsar after the next start."""
    mqtt = mqtt_settings(broker, protocol="3.1.1")
    root = mqtt.client_id
    settings = ingest_settings(mqtt, namespaces, routes=(rule_for(root),))
    topics = [f"{root}/w-{n}/glucose" for n in range(5)]
    confirmed: list[str] = []
    with device(mqtt, "dev", window=IN_ORDER) as dev:
        for run in range(3):
            with ingest_process(settings, tmp_path) as process:
                publish_ids(dev, [f"{t}{run}" for t in topics], 1000, confirmed)
                poll_for(lambda run=run: len(confirmed) > run * 1000 + 300, 60, "a flow")  # type: ignore[misc]
                process.send_signal(signal.SIGTERM if run % 2 else signal.SIGINT)
                assert process.wait(patient(40)) == 0, (tmp_path / "ingest.log").read_text()
            assert dev.flush(60)
        with ingest_process(settings, tmp_path) as process:
            poll_for(lambda: set(confirmed) <= ids(namespaces), 60, "every confirmed id in Pulsar", every=0.5)
            process.terminate()
            assert process.wait(patient(40)) == 0
    assert_in_order(namespaces)


def ids(namespaces: PulsarSettings) -> set[str]:
    return {m.payload.decode().strip() for m in stored(namespaces, "fleet")}


def assert_in_order(namespaces: PulsarSettings) -> None:
    """First copies of each MQTT topic are in the order of publishing."""
    per_topic: dict[str, list[str]] = {}
    for messages in by_key(stored(namespaces, "fleet")).values():
        for one in messages:
            per_topic.setdefault(one.rsplit("#", 1)[0], []).append(one)
    for topic, found in per_topic.items():
        numbers = first_copies(found)
        assert numbers == sorted(numbers), topic


def test_killed_in_mid_flow_every_confirmed_id_is_in_pulsar_in_order(
    broker: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    mqtt = mqtt_settings(broker, protocol="3.1.1")
    root = mqtt.client_id
    settings = ingest_settings(mqtt, namespaces, routes=(rule_for(root),), limits={"in_flight": 200})
    topics = [f"{root}/w-{n}/glucose" for n in range(5)]
    confirmed: list[str] = []
    with device(mqtt, "dev", window=IN_ORDER) as dev:
        with ingest_process(settings, tmp_path):  # to make the session
            pass
        for kill in range(3):
            with ingest_process(settings, tmp_path) as process:
                publish_ids(dev, [f"{t}{kill}" for t in topics], 1000, confirmed)
                poll_for(lambda kill=kill: len(confirmed) > kill * 1000 + 300, 60, "a flow")  # type: ignore[misc]
                process.kill()
            assert dev.flush(60)
        assert len(confirmed) == 3000
        with ingest_process(settings, tmp_path) as process:
            poll_for(lambda: set(confirmed) <= ids(namespaces), 90, "every confirmed id in Pulsar", every=0.5)
            process.terminate()
            assert process.wait(patient(40)) == 0
    assert_in_order(namespaces)


def test_topics_explain_shows_where_a_topic_goes(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(
        "ingest: {routes: [{name: w, filter: wearables/+device/+m, device: '{device}', command_topic: 'd/{device}/c'}]}"
    )

    def explain(topic: str, *more: str, code: int = 0) -> str:
        command = [sys.executable, "-c", "from pulsebridge.cli.app import main; main()", "topics", "explain", topic]
        done = subprocess.run(
            [*command, "-c", str(config), *more], capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == code, done.stderr
        return done.stdout

    properties = json.loads(explain("wearables/w-1/glucose", "--json"))
    assert properties["pulsar_topic"] == "persistent://public/pulsebridge/wearables"
    assert (properties["key"], properties["device"], properties["command_topic"]) == ("w-1", "w-1", "d/w-1/c")
    assert properties["captures"] == {"device": "w-1", "m": "glucose"}
    assert json.loads(explain("d/w-1/c", "--json"))["outcome"] == "left out"
    assert "not received" in explain("elsewhere/x", code=1)
