"""Several MQTT brokers: each link on its own, whatever the others do."""

from __future__ import annotations

import os
import signal

import pytest

from bridge import contract
from bridge.settings import Settings
from bridge.settings.ingest import IngestSettings, TopicRule
from bridge.settings.mqtt import MqttSettings
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.local.stack import LocalStack
from tests.support.ingest import device, first_copies, publish_ids, running_ingest, stored
from tests.support.stack import mqtt_settings, new_stack
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack


def settings_of(
    mqtt: MqttSettings, namespaces: PulsarSettings, links: list[dict[str, object]], **ingest: object
) -> Settings:
    rule = TopicRule(name="fleet", filter=f"{mqtt.client_id}/+device", topic="fleet", device="{device}")
    return Settings(
        mqtt=mqtt,
        pulsar=namespaces,
        ingest=IngestSettings(routes=(rule,), links=links, **ingest),  # type: ignore[arg-type]
    )


def test_a_frozen_and_a_dead_broker_delay_no_other_link(stack: LocalStack, namespaces: PulsarSettings) -> None:
    """Three links: one through a proxy that stops forwarding in mid-flow, one to a closed port."""
    mqtt = mqtt_settings(stack, keep_alive="5s")
    root = mqtt.client_id
    with TcpProxy(stack.mqtt_host, stack.mqtt_port) as gone:
        pass  # a closed port
    with TcpProxy(stack.mqtt_host, stack.mqtt_port) as slow:
        settings = settings_of(
            mqtt,
            namespaces,
            [
                {"name": "slow", "client_id": f"{root}-slow", "port": slow.port},
                {"name": "dead", "client_id": f"{root}-dead", "port": gone.port},
                {"name": "good", "client_id": f"{root}-good"},
            ],
        )
        confirmed: list[str] = []
        with running_ingest(settings, wait=False) as service, device(mqtt, "dev", window=1) as dev:
            ready = {"slow": True, "dead": False, "good": True}
            poll_for(lambda: service.running.readiness().get("mqtt") == ready, 60, "both links")
            slow.freeze()
            publish_ids(dev, [f"{root}/later"], 200, confirmed)
            poll_for(lambda: "good" in links_of(namespaces, 200), 60, "the good link's messages", every=0.3)
            poll_for(
                lambda: service.running.readiness()["mqtt"] == {"slow": False, "dead": False, "good": True},
                60,
                "the frozen one to be known as lost",
            )
            assert not service.ready.is_set()
            slow.thaw()
            poll_for(lambda: links_of(namespaces, 200) == {"slow", "good"}, 90, "all of them", every=0.5)
            poll_for(lambda: service.running.readiness().get("mqtt") == ready, 60, "the link to be back")


@pytest.mark.long
def test_a_stopped_second_broker_blocks_no_other_link_and_loses_nothing_when_it_continues(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    """Two brokers; the second one's process is stopped (SIGSTOP) in mid-flow, and goes on later.

    What the first one brings is acknowledged meanwhile: else no more than its window of 20 would come.
    """
    near = mqtt_settings(stack, keep_alive="5s")
    root = near.client_id
    with new_stack(pulsar_url=stack.pulsar_url, admin_url=stack.admin_url) as other:
        far = near.model_copy(update={"port": other.mqtt_port})
        settings = settings_of(
            near,
            namespaces,
            [
                {"name": "near", "client_id": f"{root}-near"},
                {"name": "far", "client_id": f"{root}-far", "port": other.mqtt_port},
            ],
            limits={"in_flight": 20},
        )
        came: list[str] = []
        with (
            running_ingest(settings) as service,
            device(near, "dev", window=1) as beside,
            device(far, "dev", window=1) as dev,
        ):
            publish_ids(dev, [f"{root}/far"], 300, came)
            poll_for(lambda: len(ids_of(namespaces, "far")) > 20, 60, "the far broker's messages", every=0.1)
            os.kill(other.pids["mqtt"], signal.SIGSTOP)
            try:
                publish_ids(beside, [f"{root}/near"], 200, [])
                poll_for(lambda: len(set(ids_of(namespaces, "near"))) == 200, 60, "the near broker's", every=0.3)
                poll_for(
                    lambda: service.running.readiness()["mqtt"] == {"near": True, "far": False}, 60, "far to be lost"
                )
            finally:
                os.kill(other.pids["mqtt"], signal.SIGCONT)
            assert dev.flush(90)
            poll_for(lambda: set(came) <= set(ids_of(namespaces, "far")), 60, "all of it", every=0.5)
            assert len(came) == 300
            poll_for(lambda: service.running.readiness()["mqtt"] == {"near": True, "far": True}, 60, "far to be back")
        for name, count in (("near", 200), ("far", 300)):
            assert first_copies(ids_of(namespaces, name)) == list(range(count))


def ids_of(namespaces: PulsarSettings, device_name: str) -> list[str]:
    """Return the ids of a device's messages, in the order of the log."""
    return [m.payload.decode() for m in stored(namespaces, "fleet") if m.key == device_name]


def links_of(namespaces: PulsarSettings, count: int) -> set[str]:
    """Return the links by which all ``count`` of the later messages came."""
    seen: dict[str, set[bytes]] = {}
    for message in stored(namespaces, "fleet"):
        if message.key == "later":
            seen.setdefault(message.properties[contract.P_LINK], set()).add(message.payload)
    return {link for link, payloads in seen.items() if len(payloads) == count}


def test_links_keep_their_own_filters_over_a_restart(stack: LocalStack, namespaces: PulsarSettings) -> None:
    """The same client id at two brokers is two sessions: neither takes the other's memory for its own (H6)."""
    mqtt = mqtt_settings(stack)
    root = mqtt.client_id
    with TcpProxy(stack.mqtt_host, stack.mqtt_port) as proxy, device(mqtt, "dev") as dev:
        dev.publish(f"{root}/d", b"retained", retain=True)
        assert dev.flush()
        links: list[dict[str, object]] = [
            {"name": "a", "client_id": f"{root}-1"},
            {"name": "b", "client_id": f"{root}-2", "port": proxy.port},
        ]
        for _run in range(3):
            with running_ingest(settings_of(mqtt, namespaces, links)):
                poll_for(lambda: len(stored(namespaces, "fleet")) >= 2, 60, "the retained message of both")
        dev.publish(f"{root}/d", b"", retain=True)
        assert dev.flush()
    properties = [m.properties for m in stored(namespaces, "fleet")]
    assert sorted(one[contract.P_LINK] for one in properties) == ["a", "b"]
    assert all(one[contract.P_RETAINED] == "1" for one in properties)
