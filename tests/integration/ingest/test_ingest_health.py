"""What an ingest process says of itself: metrics that add up, ready only when it serves, sick only when it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from bridge.mqtt.device import DeviceClient
from bridge.pulsar.admin import PulsarAdmin, rest_path
from bridge.settings import MetricsSettings, MqttSettings, PulsarSettings, Settings
from bridge.settings.http import HttpSettings
from bridge.settings.ingest import IngestSettings
from bridge.settings.log import LogSettings
from bridge.settings.rules import TopicRule
from pulsebridge.local.ports import free_ports
from pulsebridge.local.stack import LocalStack
from tests.support.endpoint import Endpoint
from tests.support.ingest import device, ingest_process, ingest_settings, publish_ids, running_ingest
from tests.support.stack import mqtt_settings
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import patient, poll_for

pytestmark = pytest.mark.stack


def shown(settings: Settings, **metrics: Any) -> tuple[Settings, Endpoint]:
    """Return the settings with an endpoint on a free port, and the endpoint."""
    (port,) = free_ports(1)
    section = MetricsSettings(port=port, probe_interval="2s", **metrics)
    return settings.model_copy(update={"metrics": section}), Endpoint(port)


def fleet(root: str) -> TopicRule:
    return TopicRule(name="fleet", filter=f"{root}/+device", topic="fleet", device="{device}")


def test_metrics_of_a_process_add_up_to_what_was_published(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    mqtt = mqtt_settings(stack)
    settings, endpoint = shown(
        ingest_settings(
            mqtt,
            namespaces,
            routes=(fleet(mqtt.client_id),),
            filters=(f"{mqtt.client_id}/#",),
            limits={"message_size": "128KiB"},
        ),
        mop_names=True,
    )
    confirmed: list[str] = []
    link = mqtt.client_id
    with ingest_process(settings, tmp_path), device(mqtt, "dev") as dev:
        endpoint.await_ready()
        publish_ids(dev, [f"{link}/d{n}" for n in range(5)], 300, confirmed, size=100)
        dev.publish(f"{link}/d1", bytes(100_000))  # no room for its properties below the limit
        poll_for(lambda: endpoint.value("pulsebridge_ingest_acked_total", link=link) == 301, 60, "all acknowledged")
        expected = {
            "received_total": 301.0,
            "received_bytes_total": 300 * 100 + 100_000.0,
            "stored_total": 301.0,
            "dead_letters_total": 1.0,
            "cut_total": 0.0,
            "left_out_total": 0.0,
            "connections_total": 1.0,
            "connected": 1.0,
            "in_flight_limit": 2000.0,
        }
        found = {name: endpoint.value(f"pulsebridge_ingest_{name}", link=link) for name in expected}
        assert found == expected
        poll_for(lambda: 1 <= endpoint.value("pulsebridge_ingest_producers", link=link) <= 6, 20, "producers")
        assert endpoint.value("pulsebridge_ingest_store_seconds_count", link=link) >= 1
        assert endpoint.value("pulsebridge_ingest_receipts_total", link=link, result="stored") >= 1
        # The gauges are set once a second.
        for name, value in (("in_flight", 0.0), ("oldest_unacked_seconds", 0.0), ("topics", 1.0)):
            poll_for(
                lambda name=name, value=value: endpoint.value(f"pulsebridge_ingest_{name}") == value,  # type: ignore[misc]
                20,
                name,
            )
        poll_for(lambda: endpoint.value("pulsebridge_ingest_topic_cache_entries") == 5, 20, "the cache")
        assert endpoint.value("pulsebridge_ingest_topic_cache_misses_total") == 5
        assert_mop_names(endpoint, mqtt, namespaces.service_url)
        text = endpoint.get("/metrics")[1].replace(f'"{link}"', "")  # the link is named after its client id
        assert link not in text, "a topic is shown"
        assert "d1" not in text, "a device is shown"


def assert_mop_names(endpoint: Endpoint, mqtt: MqttSettings, pulsar: str) -> None:
    rates = {}
    for sample in endpoint.samples():  # of one scrape: rates are of that moment
        if sample.name == "connection_stats":
            assert sample.labels["client_address"] == f"{mqtt.host}:{mqtt.port}"
            assert f"pulsar://{sample.labels['broker_address']}" == pulsar
            rates[sample.labels["stat"]] = sample.value
    assert 0 < rates["request_rate"] <= 300  # of the dead letter the broker is not known
    assert rates["byte_rate"] / rates["request_rate"] == pytest.approx(100)


def test_an_mqtt_broker_that_is_away_makes_it_unready_and_no_more(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    with TcpProxy(stack.mqtt_host, stack.mqtt_port) as proxy:
        mqtt = mqtt_settings(stack, port=proxy.port, reconnect_max="500ms")
        settings, endpoint = shown(ingest_settings(mqtt, namespaces, routes=(fleet(mqtt.client_id),)))
        with ingest_process(settings, tmp_path) as process:
            endpoint.await_ready()
            with proxy.away():
                endpoint.await_missing("mqtt mqtt", "no connection to the MQTT broker")
                assert endpoint.value("pulsebridge_ready") == 0
                assert endpoint.value("pulsebridge_ingest_connected") == 0
            endpoint.await_ready()
            assert endpoint.value("pulsebridge_ingest_connections_total") == 2
            process.terminate()
            assert process.wait(patient(60)) == 0


def test_what_it_cannot_recover_from_ends_it(stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path) -> None:
    """Another process takes the client id: MQTT 5 brokers say so, and to go on would be a fight."""
    mqtt = mqtt_settings(stack, protocol="5")
    settings, endpoint = shown(ingest_settings(mqtt, namespaces, routes=(fleet(mqtt.client_id),)))
    with ingest_process(settings, tmp_path) as process:
        endpoint.await_ready()
        other = DeviceClient(mqtt, mqtt.client_id)
        try:
            other.connect(30)
            assert process.wait(patient(60)) == 1
        finally:
            other.close()
    assert "another process uses the MQTT client id" in (tmp_path / "ingest.log").read_text()


def test_one_link_that_ended_for_good_makes_it_sick_while_the_others_go_on(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    """A restart is needed to have that link back, and nothing that this process waits for will bring it."""
    mqtt = mqtt_settings(stack, protocol="5")
    root = mqtt.client_id
    settings, endpoint = shown(
        Settings(
            mqtt=mqtt,
            pulsar=namespaces,
            ingest=IngestSettings(
                routes=(fleet(root),),
                links=(
                    {"name": "good", "client_id": f"{root}-good"},
                    {"name": "bad", "client_id": f"{root}-bad"},
                ),  # type: ignore[arg-type]
            ),
        )
    )
    with ingest_process(settings, tmp_path), device(mqtt, "dev") as dev:
        endpoint.await_ready()
        other = DeviceClient(mqtt, f"{root}-bad")
        try:
            other.connect(30)
            poll_for(lambda: not endpoint.healthy, 30, "it to be sick")
        finally:
            other.close()
        status, body = endpoint.asked("/healthz")
        assert status == 503
        assert [failed["part"] for failed in body["failed"]] == ["mqtt bad"]
        assert "another process uses the MQTT client id" in body["failed"][0]["why"]
        poll_for(lambda: list(endpoint.missing) == ["mqtt bad"], 30, "nothing else to be missing")
        assert endpoint.value("pulsebridge_healthy") == 0
        before = endpoint.value("pulsebridge_ingest_acked_total", link="good")
        dev.publish(f"{root}/d1", b"still")
        poll_for(lambda: endpoint.value("pulsebridge_ingest_acked_total", link="good") > before, 30, "a flow")


def test_a_healthy_run_says_nothing_above_info_and_all_of_it_in_json(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    mqtt = mqtt_settings(stack)
    confirmed: list[str] = []
    settings, endpoint = shown(ingest_settings(mqtt, namespaces, routes=(fleet(mqtt.client_id),)))
    settings = settings.model_copy(update={"log": LogSettings(format="json", level="debug")})
    with ingest_process(settings, tmp_path) as process, device(mqtt, "dev") as dev:
        endpoint.await_ready()
        publish_ids(dev, [f"{mqtt.client_id}/d{n}" for n in range(20)], 200, confirmed)
        poll_for(lambda: endpoint.value("pulsebridge_ingest_acked_total") == 200, 60, "all acknowledged")
        process.terminate()
        assert process.wait(patient(60)) == 0
    lines = [json.loads(line) for line in (tmp_path / "ingest.log").read_text().splitlines()]
    assert {"ingest starts", "subscribed at the MQTT broker", "ingest stops"} <= {x["event"] for x in lines}
    assert {line["level"] for line in lines} <= {"debug", "info"}, lines


@pytest.mark.long
def test_a_partition_that_takes_nothing_is_counted(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    mqtt = mqtt_settings(stack)
    one = namespaces.model_copy(update={"partitions": 1})
    settings, endpoint = shown(ingest_settings(mqtt, one, routes=(fleet(mqtt.client_id),)))
    topic = f"{mqtt.client_id}/d1"
    with ingest_process(settings, tmp_path), device(mqtt, "dev") as dev:
        dev.publish(topic, b"the first one makes the topic")
        poll_for(lambda: endpoint.value("pulsebridge_ingest_acked_total") == 1, 60, "the first one")
        assert endpoint.value("pulsebridge_ingest_blocked_partitions") == 0
        with PulsarAdmin(one, timeout_s=30) as admin:
            admin.request("POST", f"/{rest_path(one.readings_topic('fleet'))}/terminate/partitions")
        for number in range(5):
            dev.publish(topic, b"%d" % number)
        poll_for(lambda: endpoint.value("pulsebridge_ingest_acked_total") == 6, 60, "all acknowledged")
        poll_for(lambda: endpoint.value("pulsebridge_ingest_blocked_partitions") == 1, 20, "the gauge")
        assert endpoint.value("pulsebridge_ingest_dead_letters_total") == 5
        poll_for(lambda: endpoint.missing == {}, 30, "it to be ready")


def test_http_alone_is_ready_and_shows_no_mqtt_connection(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    settings, endpoint = shown(
        Settings(
            pulsar=namespaces,
            messaging_protocols=("http",),
            http=HttpSettings(port=port),
        ),
        mop_names=True,
    )
    with running_ingest(settings):
        endpoint.await_ready()
        before = endpoint.value("pulsebridge_ingest_stored_total", link="http")  # of other tests here
        answer = httpx.post(f"http://127.0.0.1:{port}/topics/plant/7?qos=1", content=b"x", trust_env=False)
        assert answer.is_success, answer.text
        assert endpoint.value("pulsebridge_ingest_stored_total", link="http") == before + 1
        assert endpoint.value("pulsebridge_ingest_in_flight_limit", link="http") > 0
        links = {s.labels["link"] for s in endpoint.samples() if s.name == "pulsebridge_ingest_connected"}
        assert "http" not in links  # or the alert for links that are down would ring
        with httpx.Client(trust_env=False) as client:
            client.post(f"http://127.0.0.1:{port}/topics/plant/7?qos=1", content=b"x")
            poll_for(lambda: endpoint.value("active_connections", client_address="http") == 1, 20, "the connection")
        assert endpoint.value("connection_stats", client_address="http", stat="request_rate") > 0
