"""A link against a listener that takes connections and says nothing: each attempt fails for its own reason."""

from __future__ import annotations

import socket

from bridge.mqtt.client import Link
from bridge.mqtt.types import Disconnected, LinkHandler
from bridge.settings.mqtt import MqttSettings
from tests.support.waiting import poll_for


class Losses(LinkHandler):
    def __init__(self) -> None:
        self.lost: list[Disconnected] = []

    def on_disconnected(self, event: Disconnected) -> None:
        self.lost.append(event)


def test_a_broker_that_says_nothing_is_dialled_again_and_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = MqttSettings(
            port=silent.getsockname()[1],
            client_id="t",
            connect_timeout_s=0.05,
            reconnect_min_s=0.01,
            reconnect_max_s=0.02,
        )
        losses = Losses()
        link = Link(settings, losses)

        def turned() -> bool:
            link.turn(0.02)
            return len(losses.lost) >= 5

        try:
            poll_for(turned, 30, "five attempts", every=0.0)
        finally:
            link.disconnect()
            link.close()
    assert {event.why for event in losses.lost} == {"no CONNACK within 0.05 s"}
