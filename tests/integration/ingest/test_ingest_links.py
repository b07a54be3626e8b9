"""Several MQTT brokers: each link on its own, whatever the others do."""

from __future__ import annotations

import pytest

from bridge import contract
from bridge.local.stack import LocalStack
from bridge.settings import Settings
from bridge.settings.ingest import IngestSettings, TopicRule
from bridge.settings.mqtt import MqttSettings
from bridge.settings.pulsar import PulsarSettings
from tests.support.ingest import device, publish_ids, running_ingest, stored
from tests.support.stack import mqtt_settings
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
        ingest=IngestSettings(rules=(rule,), links=links, **ingest),  # type: ignore[arg-type]
    )


def test_a_frozen_and_a_dead_broker_delay_no_other_link(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    """Three links: one through a proxy that stops forwarding in mid-flow, one to a port where nobody listens."""
    mqtt = mqtt_settings(stack, keep_alive_s=5)
    root = mqtt.client_id
    with TcpProxy(stack.mqtt_host, stack.mqtt_port) as gone:
        pass  # a port where nobody listens
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
            poll_for(lambda: service.readiness().get("mqtt") == ready, 60, "both links")
            slow.freeze()
            publish_ids(dev, [f"{root}/later"], 200, confirmed)
            poll_for(lambda: "good" in links_of(namespaces, 200), 60, "the good link's messages", every=0.3)
            poll_for(
                lambda: service.readiness()["mqtt"] == {"slow": False, "dead": False, "good": True},
                60,
                "the frozen one to be known as lost",
            )
            assert not service.ready.is_set()
            slow.thaw()
            poll_for(lambda: links_of(namespaces, 200) == {"slow", "good"}, 90, "all of them", every=0.5)
            poll_for(lambda: service.readiness().get("mqtt") == ready, 60, "the link to be back")


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
    told = [m.properties for m in stored(namespaces, "fleet")]
    assert sorted(t[contract.P_LINK] for t in told) == ["a", "b"]
    assert all(t[contract.P_RETAINED] == "1" for t in told)
