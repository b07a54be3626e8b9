"""A clean stop during a backlog: stored messages are acknowledged, so that the broker does not send them again (H9)."""

from __future__ import annotations

import pytest
from prometheus_client import REGISTRY

from bridge.ingest import worker
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.local.stack import LocalStack
from tests.support.bare_mqtt import bare_publisher
from tests.support.ingest import ingest_settings, rule_for, running_ingest, stored
from tests.support.stack import mqtt_settings
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack

BACKLOG = 3000
STOPS = 4


def stored_by(link: str) -> float:
    return REGISTRY.get_sample_value("pulsebridge_ingest_stored_total", {"link": link}) or 0.0


@pytest.mark.parametrize("protocol", ["3.1.1", pytest.param("5", marks=pytest.mark.long)])
def test_h9_a_stop_under_a_backlog_repeats_nothing_that_was_stored(
    broker: LocalStack, namespaces: PulsarSettings, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker still sends when the connection ends; the last acknowledgements must not be lost in that.

    With MQTT 5, Artemis counts what it sent in vain against each later connection: it would send nothing any more.
    """
    monkeypatch.setattr(worker, "_PATIENCE_S", 0.5)
    mqtt = mqtt_settings(broker, protocol=protocol)
    root = mqtt.client_id
    settings = ingest_settings(mqtt, namespaces, routes=(rule_for(root),), limits={"in_flight": 50})
    with running_ingest(settings):
        pass  # to make the session
    sent: list[bytes] = []
    midst = 0
    with bare_publisher(mqtt, "pub") as client:
        for _ in range(STOPS):
            waits = []
            for number in range(BACKLOG):
                sent.append(b"%06d" % len(sent) + bytes(500))
                waits.append(client.publish(f"{root}/w-{number % 20}/x", sent[-1], 1))
            for one in waits:
                one.wait_for_publish(60)
            before = stored_by(root)
            with running_ingest(settings):
                poll_for(lambda before=before: stored_by(root) > before + 20, 30, "a flow", every=0.0)  # type: ignore[misc]
            midst += stored_by(root) < len(sent)
    assert midst >= STOPS // 2, "stops that came before the backlog's end; how many is this machine's haste"
    with running_ingest(settings):
        poll_for(lambda: stored_by(root) >= len(sent), 60, "the rest")
    assert sorted(m.payload for m in stored(namespaces, "fleet")) == sorted(sent)
