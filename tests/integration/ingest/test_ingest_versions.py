"""Every MQTT version and QoS, on each broker: what a device may send arrives as it was sent."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from bridge import contract
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.local.stack import LocalStack
from tests.support.bare_mqtt import bare_publisher, publish, retain_all
from tests.support.ingest import ingest_process, ingest_settings, rule_for, running_ingest, stored, wait_for, worker_of
from tests.support.stack import mqtt_settings
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import patient, poll_for

pytestmark = pytest.mark.stack

VERSIONS = ["3.1", "3.1.1", "5"]
RETAINED_TOPICS = 1000
RESTARTS = 10


@pytest.mark.parametrize("link", VERSIONS)
def test_publishers_of_every_version_and_qos(broker: LocalStack, namespaces: PulsarSettings, link: str) -> None:
    """Subscribed at QoS 1, so what is published at QoS 2 arrives at least once; here, undisturbed, exactly once."""
    mqtt = mqtt_settings(broker, protocol=link)
    root = mqtt.client_id
    sent = [(version, qos) for version in VERSIONS for qos in (0, 1, 2)]
    with running_ingest(ingest_settings(mqtt, namespaces, routes=(rule_for(root),))):
        for version in VERSIONS:
            with bare_publisher(mqtt, "pub", version) as client:  # Artemis may drop a QoS 0 right before DISCONNECT
                for qos in (0, 1, 2):
                    # No dot in a level: Artemis takes one for a level's end, and "+" does not match it then.
                    publish(client, f"{root}/w-{qos}/x", f"{version} {qos}".encode(), qos=qos)
        found = wait_for(namespaces, len(sent))
    assert sorted(m.payload.decode() for m in found) == sorted(f"{version} {qos}" for version, qos in sent)
    for message in found:
        qos = int(message.payload.split()[1])
        assert message.properties[contract.P_QOS] == str(min(qos, 1))
        assert message.properties[contract.P_PROTOCOL] == link


@pytest.mark.chaos
def test_what_is_published_at_qos_2_survives_a_killed_ingest(
    broker: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    """Subscribed at QoS 1: the broker keeps each message until Pulsar has it, and some may come twice."""
    mqtt = mqtt_settings(broker)
    settings = ingest_settings(mqtt, namespaces, routes=(rule_for(mqtt.client_id),))
    confirmed: list[bytes] = []

    def publish_more(client: paho.Client, count: int) -> None:
        for _ in range(count):
            payload = b"%d" % len(confirmed)
            publish(client, f"{mqtt.client_id}/w-1/x", payload, qos=2)
            confirmed.append(payload)

    with bare_publisher(mqtt, "pub") as client:
        for _ in range(2):
            with ingest_process(settings, tmp_path) as process:
                publish_more(client, 100)
                process.kill()
            publish_more(client, 20)
        with running_ingest(settings):
            poll_for(
                lambda: set(confirmed) <= {m.payload for m in stored(namespaces, "fleet")},
                60,
                "all",
                every=0.3,
            )


def test_a_session_that_another_client_subscribed_at_qos_2_is_taken_over(
    broker: LocalStack, namespaces: PulsarSettings
) -> None:
    """Its queued messages arrive at QoS 2; ingest stores them, subscribes at QoS 1, and continues."""
    mqtt = mqtt_settings(broker)
    topic = f"{mqtt.client_id}/w-1/x"
    former = paho.Client(CallbackAPIVersion.VERSION2, mqtt.client_id, protocol=paho.MQTTv5)
    granted = threading.Event()
    former.on_subscribe = lambda *_: granted.set()
    kept = Properties(PacketTypes.CONNECT)
    kept.SessionExpiryInterval = 600
    former.connect(mqtt.host, mqtt.port, clean_start=False, properties=kept)
    former.loop_start()
    former.subscribe(f"{mqtt.client_id}/+/+", qos=2)
    assert granted.wait(patient(30))
    former.disconnect()
    former.loop_stop()
    with bare_publisher(mqtt, "pub") as client:
        for number in range(50):
            publish(client, topic, b"%d" % number, qos=2)
        settings = ingest_settings(mqtt, namespaces, routes=(rule_for(mqtt.client_id),), limits={"in_flight": 20})
        with running_ingest(settings) as service:
            for number in range(50, 100):
                publish(client, topic, b"%d" % number, qos=2)
            wait_for(namespaces, 100)
            assert worker_of(service).link.epoch == 1
    # Artemis may subscribe again before it has delivered the messages that the former subscription had queued.
    assert {m.payload for m in stored(namespaces, "fleet")} == {b"%d" % n for n in range(100)}


def test_every_property_of_mqtt_5_arrives_as_it_was_sent(broker: LocalStack, namespaces: PulsarSettings) -> None:
    mqtt = mqtt_settings(broker)
    root = mqtt.client_id
    user = [("b", "1"), ("a", ""), ("b", "1"), ("", "ü\u2028💡"), ("b", "0")]
    every_byte = bytes(range(256))
    with (
        running_ingest(ingest_settings(mqtt, namespaces, routes=(rule_for(root),))),
        bare_publisher(mqtt, "pub", "5") as client,
    ):
        publish(
            client,
            f"{root}/w-1/all",
            b"{}",
            qos=2,
            UserProperty=user,
            CorrelationData=every_byte,
            ContentType="application/json; charset=utf-8",
            ResponseTopic=f"{root}/answers",
            PayloadFormatIndicator=1,
            MessageExpiryInterval=3600,
        )
        (message,) = wait_for(namespaces, 1)
    properties = message.properties
    assert contract.decode_user_properties(properties[contract.P_USER]) == user
    assert contract.decode_correlation(properties[contract.P_CORRELATION]) == every_byte
    assert properties[contract.P_CONTENT_TYPE] == "application/json; charset=utf-8"
    assert properties[contract.P_RESPONSE_TOPIC] == f"{root}/answers"
    assert properties[contract.P_PAYLOAD_FORMAT] == "1"
    assert 3500 < int(properties[contract.P_EXPIRY]) <= 3600


@pytest.mark.parametrize("protocol", VERSIONS)
def test_a_will_arrives_like_any_publish(broker: LocalStack, namespaces: PulsarSettings, protocol: str) -> None:
    mqtt = mqtt_settings(broker, protocol=protocol)
    root = mqtt.client_id
    will = (f"{root}/w-1/gone", b"offline")
    with (
        running_ingest(ingest_settings(mqtt, namespaces, routes=(rule_for(root),))),
        TcpProxy(broker.mqtt_host, broker.mqtt_port) as proxy,
        bare_publisher(mqtt.model_copy(update={"port": proxy.port}), "dev", protocol, will=will) as dying,
    ):
        publish(dying, f"{root}/w-1/here", b"online", qos=1)
        proxy.cut()  # no DISCONNECT: the broker publishes the will
        found = wait_for(namespaces, 2)
    assert [m.payload for m in found] == [b"online", b"offline"]
    assert (found[1].key, found[1].properties[contract.P_TOPIC]) == ("w-1", f"{root}/w-1/gone")
    assert found[1].properties[contract.P_QOS] == "1"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
@pytest.mark.long
def test_h6_ten_restarts_bring_each_of_a_thousand_retained_messages_once(
    broker: LocalStack, namespaces: PulsarSettings, protocol: str
) -> None:
    mqtt = mqtt_settings(broker, protocol=protocol)
    root = mqtt.client_id
    settings = ingest_settings(mqtt, namespaces, routes=(rule_for(root),))
    topics = [f"{root}/w-{n}/state" for n in range(RETAINED_TOPICS)]
    with bare_publisher(mqtt, "pub") as client:
        retain_all(client, topics, b"retained")
        with running_ingest(settings):
            wait_for(namespaces, RETAINED_TOPICS)
        for run in range(RESTARTS):
            with running_ingest(settings):
                # It comes behind whatever a subscription would bring.
                publish(client, topics[0], b"live", qos=1, retain=True)
                found = wait_for(namespaces, RETAINED_TOPICS + run + 1)
        retain_all(client, topics, b"")  # leave nothing behind at the broker
    replayed = [m for m in found if m.properties.get(contract.P_RETAINED) == "1"]
    assert sorted(m.properties[contract.P_TOPIC] for m in replayed) == sorted(topics)
    assert {m.payload for m in replayed} == {b"retained"}
    assert [m.payload for m in found if m not in replayed] == [b"live"] * RESTARTS


@pytest.mark.parametrize("retained", ["keep", "mark", "skip"])
@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
def test_h6_retained_are_kept_marked_or_skipped_and_live_ones_always_stay(
    broker: LocalStack, namespaces: PulsarSettings, protocol: str, retained: str
) -> None:
    mqtt = mqtt_settings(broker, protocol=protocol)
    root = mqtt.client_id
    settings = ingest_settings(mqtt, namespaces, routes=(rule_for(root),), retained=retained)
    with bare_publisher(mqtt, "pub") as client:
        retain_all(client, [f"{root}/w-1/state"], b"old")
        with running_ingest(settings):
            publish(client, f"{root}/w-1/state", b"live", qos=1, retain=True)
            poll_for(lambda: any(m.payload == b"live" for m in stored(namespaces, "fleet")), 60, "the live one")
        retain_all(client, [f"{root}/w-1/state"], b"")
    found = {m.payload: m.properties for m in stored(namespaces, "fleet")}
    assert set(found) == ({b"live"} if retained == "skip" else {b"old", b"live"})
    assert found[b"live"].get(contract.P_RETAINED) is None
    if retained != "skip":
        assert found[b"old"].get(contract.P_RETAINED) == ("1" if retained == "mark" else None)
    if (retained, protocol, broker.settings.mqtt_server) == ("keep", "5", "mosquitto"):
        # Retain As Published; before MQTT 5 the broker clears the flag, and Artemis clears it all the same.
        assert found[b"live"][contract.P_RETAIN] == "1"


def test_what_expired_at_the_broker_while_ingest_was_away_is_not_stored(
    broker: LocalStack, namespaces: PulsarSettings
) -> None:
    """The publisher asked for it: a message with an expiry is no reading any more when that is over."""
    mqtt = mqtt_settings(broker)
    root = mqtt.client_id
    settings = ingest_settings(mqtt, namespaces, routes=(rule_for(root),))
    with running_ingest(settings):
        pass  # to make the session
    with bare_publisher(mqtt, "pub", "5") as client:
        begin = time.monotonic()
        publish(client, f"{root}/w-1/a", b"short", qos=1, MessageExpiryInterval=1)
        publish(client, f"{root}/w-1/a", b"long", qos=1, MessageExpiryInterval=600)
        publish(client, f"{root}/w-1/a", b"ever", qos=1)
        poll_for(lambda: time.monotonic() > begin + 3, 30, "the expiry")
    with running_ingest(settings):
        found = wait_for(namespaces, 2)
    assert [m.payload for m in found] == [b"long", b"ever"]
    assert 0 < int(found[0].properties[contract.P_EXPIRY]) < 600
