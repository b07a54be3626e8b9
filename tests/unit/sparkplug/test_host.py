from __future__ import annotations

import json
import socket
from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest

from bridge.errors import ConfigError
from bridge.mqtt.types import Connected, Disconnected, Message, Subscription
from bridge.settings import MqttSettings
from sparkplug.host import State, connection, host_problem, says_offline, state_payload, state_topic

AT_MS = 1_767_225_600_000


class Wire:
    """What a connection sends, in order, as a link would."""

    epoch = 1

    def __init__(self, reason: int = 0, *, unconfirmed: bool = False) -> None:
        self.sent: list[Any] = []
        self._unconfirmed = unconfirmed
        self._reason = reason

    def publish(self, topic: str, payload: bytes, *, qos: int, retain: bool, confirmed: Callable[[int], None]) -> None:
        self.sent.append((topic, json.loads(payload), qos, retain))
        if not self._unconfirmed:
            confirmed(self._reason)

    def subscribe(self, subscriptions: Sequence[Subscription]) -> None:
        self.sent.append([one.filter for one in subscriptions])

    def acknowledge(self, mids: Sequence[int], epoch: int) -> bool:
        return True


def connected(wire: Wire) -> State:
    state = State("host", AT_MS)
    state.attach(wire)
    state.on_connected(Connected(1, False))
    return state


@pytest.mark.tck(
    "tck-id-host-topic-phid-death-payload", "tck-id-host-topic-phid-death-payload-timestamp-connect",
    "tck-id-host-topic-phid-death-required", "tck-id-host-topic-phid-death-retain",
    "tck-id-host-topic-phid-death-topic", "tck-id-operational-behavior-host-application-connect-will",
    "tck-id-operational-behavior-host-application-connect-will-payload",
    "tck-id-operational-behavior-host-application-connect-will-retained",
    "tck-id-operational-behavior-host-application-connect-will-topic",
    "tck-id-operational-behavior-host-application-death-payload",
    "tck-id-operational-behavior-host-application-death-qos",
    "tck-id-operational-behavior-host-application-death-retained",
    "tck-id-operational-behavior-host-application-death-topic", "tck-id-payloads-state-will-message",
    "tck-id-payloads-state-will-message-payload", "tck-id-payloads-state-will-message-retain",
)  # fmt: skip
def test_the_will_says_offline_with_the_time_of_the_connect_and_is_retained() -> None:
    will = State("host", AT_MS).will
    assert (will.topic, will.retain, will.delay_s) == ("spBv1.0/STATE/host", True, 0)
    assert json.loads(will.payload) == {"online": False, "timestamp": AT_MS}


@pytest.mark.tck(
    "tck-id-host-topic-phid-death-qos", "tck-id-message-flow-phid-sparkplug-clean-session-311",
    "tck-id-message-flow-phid-sparkplug-clean-session-50",
    "tck-id-operational-behavior-host-application-connect-will-qos", "tck-id-payloads-state-will-message-qos",
)  # fmt: skip
@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
def test_the_connect_begins_a_clean_session_and_has_the_will_at_qos_1(protocol: Literal["3.1.1", "5"]) -> None:
    settings = MqttSettings(protocol=protocol, client_id="c")
    state = State("host", AT_MS)
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = settings.model_copy(update={"host": "127.0.0.1", "port": server.getsockname()[1]})
        link = connection(found, state)
        try:
            link.turn(0.0)
            with server.accept()[0] as accepted:
                packet = accepted.recv(4096)
        finally:
            link.close()
    name = packet.index(b"MQTT")
    flags = packet[name + 5]
    assert flags == 0b0010_1110, "retained will at QoS 1, clean session, no user"
    assert state.will.payload in packet
    if protocol == "5":
        assert b"\x11" not in packet[name + 8 : name + 9 + packet[name + 8]], "no session expiry is an expiry of 0"


@pytest.mark.tck(
    "tck-id-conformance-primary-host", "tck-id-host-topic-phid-birth-message",
    "tck-id-host-topic-phid-birth-payload", "tck-id-host-topic-phid-birth-payload-timestamp",
    "tck-id-host-topic-phid-birth-qos", "tck-id-host-topic-phid-birth-required",
    "tck-id-host-topic-phid-birth-retain", "tck-id-host-topic-phid-birth-topic", "tck-id-intro-sparkplug-host-state",
    "tck-id-message-flow-phid-sparkplug-state-publish", "tck-id-message-flow-phid-sparkplug-state-publish-payload",
    "tck-id-message-flow-phid-sparkplug-state-publish-payload-timestamp",
    "tck-id-operational-behavior-host-application-connect-birth",
    "tck-id-operational-behavior-host-application-connect-birth-payload",
    "tck-id-operational-behavior-host-application-connect-birth-qos",
    "tck-id-operational-behavior-host-application-connect-birth-retained",
    "tck-id-operational-behavior-host-application-connect-birth-topic", "tck-id-payloads-state-birth",
    "tck-id-payloads-state-birth-payload", "tck-id-payloads-state-subscribe",
    "tck-id-principles-birth-certificates-order",
)  # fmt: skip
def test_the_first_publish_is_the_birth_after_the_subscription_with_the_time_of_the_will() -> None:
    wire = Wire()
    state = connected(wire)
    assert wire.sent == [["spBv1.0/STATE/host"]]
    assert not state.online
    state.on_subscribed([1])
    assert wire.sent[1:] == [("spBv1.0/STATE/host", {"online": True, "timestamp": AT_MS}, 1, True)]
    assert state.online


@pytest.mark.parametrize("payload", [state_payload(1, online=False), b"OFFLINE", b"", b"\xff", b"{}", b"[" * 100_000])
def test_an_offline_state_of_this_host_is_answered_by_a_birth(payload: bytes) -> None:
    wire = Wire()
    state = connected(wire)
    message = Message("spBv1.0/STATE/host", payload, 1, False, False, 1, None)
    state.on_message(message)
    assert len(wire.sent) == 1, "before its own birth it answers nothing"
    state.on_subscribed([1])
    state.on_message(message)
    assert wire.sent[1] == wire.sent[2]


def test_an_offline_state_that_comes_before_the_confirmation_of_the_birth_is_answered() -> None:
    wire = Wire(unconfirmed=True)
    state = connected(wire)
    state.on_subscribed([1])
    state.on_message(Message("spBv1.0/STATE/host", state_payload(1, online=False), 1, False, False, 1, None))
    assert not state.online
    assert wire.sent[1] == wire.sent[2]


def test_a_repeated_subscription_brings_the_retained_state_and_no_further_birth() -> None:
    wire = Wire()
    state = connected(wire)
    state.on_subscribed([1])
    state.ask()
    state.on_subscribed([1])
    assert [wire.sent[0]] == wire.sent[2:]
    state.on_message(Message("spBv1.0/STATE/host", state_payload(1, online=False), 1, True, False, 1, None))
    assert wire.sent[1] == wire.sent[3]
    state.die(lambda: None)
    state.on_subscribed([1])
    assert wire.sent[4:] == [
        ("spBv1.0/STATE/host", {"online": False, "timestamp": wire.sent[4][1]["timestamp"]}, 1, True)
    ]


def test_an_online_state_and_other_hosts_are_not_answered() -> None:
    wire = Wire()
    state = connected(wire)
    state.on_subscribed([1])
    state.on_message(Message("spBv1.0/STATE/host", state_payload(1, online=True), 1, True, False, 1, None))
    state.on_message(Message("spBv1.0/STATE/other", state_payload(1, online=False), 1, True, False, 1, None))
    assert len(wire.sent) == 2


@pytest.mark.tck(
    "tck-id-host-topic-phid-death-payload-timestamp-disconnect-clean",
    "tck-id-host-topic-phid-death-payload-timestamp-disconnect-with-no-disconnect-packet",
)  # fmt: skip
def test_a_stop_says_offline_with_the_current_time() -> None:
    wire = Wire()
    state = connected(wire)
    state.on_subscribed([1])
    done: list[int] = []
    state.die(lambda: done.append(1))
    topic, body, qos, retain = wire.sent[-1]
    assert (topic, body["online"], qos, retain) == ("spBv1.0/STATE/host", False, 1, True)
    assert body["timestamp"] > AT_MS
    assert (done, state.online) == ([1], False)


def test_a_lost_connection_is_not_online() -> None:
    state = connected(Wire())
    state.on_subscribed([1])
    state.on_disconnected(Disconnected(1, "gone"))
    assert (state.online, state.lost is not None) == (False, True)


def test_a_broker_that_refuses_is_an_error_with_its_remedy() -> None:
    with pytest.raises(ConfigError, match="allow this user"):
        connected(Wire()).on_subscribed([0x87])
    with pytest.raises(ConfigError, match="0x87"):
        connected(Wire(0x87)).on_subscribed([1])


@pytest.mark.tck(
    "tck-id-operational-behavior-host-application-host-id",
)  # fmt: skip
def test_host_ids() -> None:
    assert state_topic("plant 1") == "spBv1.0/STATE/plant 1"
    assert host_problem("plant 1") is None
    for wrong in ("", "a/b", "a+", "#", "a\0", "x" * 201, "a\n"):
        assert host_problem(wrong)
    assert not says_offline(state_payload(1, online=True))
