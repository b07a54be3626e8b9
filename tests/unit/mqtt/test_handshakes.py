"""CONNECT, SUBSCRIBE, UNSUBSCRIBE and DISCONNECT are paho's bytes, and CONNACK means what paho takes it for."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from bridge.mqtt.packets import (
    DISCONNECT_PACKET,
    MalformedError,
    connack,
    connect_packet,
    reason_name,
    subscribe_packet,
    unsubscribe_packet,
)
from bridge.mqtt.types import Connected, Subscription, Will
from bridge.settings.mqtt import MqttSettings
from tests.support.mqtt_streams import CONNACK, PROTOCOLS, PahoOn
from tests.support.raw_mqtt import packet, text

_texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0\ufeff"), min_size=1, max_size=9)
_protocols = st.sampled_from(sorted(PROTOCOLS))


def written_by_paho(protocol: str, do: Callable[[Any], object], *, persistent: bool = True) -> bytes:
    """What paho writes while ``do`` is called with a client of its that is not connected."""
    near, far = socket.socketpair()
    with closing(near), closing(far):
        client = PahoOn(near, protocol, clean_session=None if protocol == "5" else not persistent)
        do(client)
        client.loop_write()
        far.setblocking(False)
        return far.recv(1 << 20)


@given(
    protocol=_protocols,
    client_id=_texts,
    credentials=st.none() | st.tuples(_texts, st.none() | _texts),
    persistent=st.booleans(),
    keep_alive_s=st.integers(1, 65_535),
    receive_maximum=st.integers(1, 65_535),
    session_expiry_s=st.integers(0, 2**32 - 1),
    will=st.none() | st.builds(Will, _texts, st.binary(max_size=9), st.booleans(), st.integers(0, 2**32 - 1)),
)
def test_connect_is_pahos(
    protocol: Any,
    client_id: str,
    credentials: tuple[str, str | None] | None,
    persistent: bool,
    keep_alive_s: int,
    receive_maximum: int,
    session_expiry_s: int,
    will: Will | None,
) -> None:
    user, password = credentials or (None, None)
    settings = MqttSettings.model_construct(
        protocol=protocol,
        client_id=client_id,
        keep_alive=keep_alive_s,
        session_expiry=session_expiry_s,
        username=user,
        password=None if password is None else _Secret(password),
    )

    def connect(client: Any) -> None:
        client._client_id = client_id.encode()
        client.username_pw_set(user, password)
        if will is not None:
            about: Any = Properties(PacketTypes.WILLMESSAGE) if protocol == "5" else None  # type: ignore[no-untyped-call]
            if about is not None:
                about.WillDelayInterval = will.delay_s
            client.will_set(will.topic, will.payload, 1, will.retain, about)
        options: dict[str, Any] = {}
        if protocol == "5":
            properties: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.ReceiveMaximum = receive_maximum
            if persistent:
                properties.SessionExpiryInterval = session_expiry_s
            options = {"clean_start": not persistent, "properties": properties}
        client.connect("peer.invalid", keepalive=keep_alive_s, **options)

    ours = connect_packet(settings, persistent=persistent, receive_maximum=receive_maximum, will=will)
    theirs = written_by_paho(protocol, connect, persistent=persistent)
    assert _sorted(ours, protocol) == _sorted(theirs, protocol)


class _Secret:
    def __init__(self, value: str) -> None:
        self._value = value

    def get_secret_value(self) -> str:
        return self._value


def _sorted(connect: bytes, protocol: str) -> bytes:
    """CONNECT with its two properties in one order; paho has one of its own."""
    expiry_first = b"\x11", b"\x21"
    if protocol != "5":
        return connect
    at = connect.index(b"MQTT\5") + 8
    length = connect[at]
    block = connect[at + 1 : at + 1 + length]
    if length == 8 and block[:1] == expiry_first[0]:
        block = block[5:] + block[:5]
    return connect[: at + 1] + block + connect[at + 1 + length :]


@given(
    protocol=_protocols,
    subscriptions=st.lists(
        st.builds(Subscription, _texts, st.integers(0, 2), st.booleans(), st.integers(0, 2)),
        min_size=1,
        max_size=3,
    ),
)
def test_subscribe_unsubscribe_and_disconnect_are_pahos(protocol: str, subscriptions: list[Subscription]) -> None:
    mqtt5 = protocol == "5"
    filters = [s.filter.replace("+", "p").replace("#", "h") for s in subscriptions]
    subscriptions = [
        Subscription(f, s.qos, s.retain_as_published, s.retain_handling)
        for f, s in zip(filters, subscriptions, strict=True)
    ]

    def how(s: Subscription) -> Any:
        return SubscribeOptions(s.qos, False, s.retain_as_published, s.retain_handling) if mqtt5 else s.qos

    def run(client: Any) -> None:
        client.connect("peer.invalid")
        client.subscribe([(s.filter, how(s)) for s in subscriptions])
        client.unsubscribe(filters)
        client.disconnect()

    written = written_by_paho(protocol, run)
    ours = subscribe_packet(1, subscriptions, mqtt5=mqtt5) + unsubscribe_packet(2, filters, mqtt5=mqtt5)
    assert written.endswith(ours + DISCONNECT_PACKET)


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
@pytest.mark.parametrize("code", range(6))
def test_a_return_code_is_the_reason_that_paho_gives(protocol: str, code: int) -> None:
    found: list[Any] = []
    near, far = socket.socketpair()
    with closing(near), closing(far):
        client = PahoOn(near, protocol)
        client.on_connect = lambda _c, _d, _flags, reason, _properties: found.append(reason)
        client.connect("peer.invalid")
        far.sendall(packet(0x20, bytes([0, code]) + (b"\0" if protocol == "5" and code == 0 else b"")))
        client.loop_read()
        client.on_disconnect = None
    ours, _ = connack(bytes([0, code]), mqtt5=protocol == "5")
    if found and (protocol != "5" or code < 2):
        assert ours == found[0].value
        assert not ours or reason_name(ours) == str(found[0])
    else:  # paho calls no callback for a wrong version, nor for return codes of 3.1.1 with MQTT 5
        assert ours == {1: 0x84, 2: 0x85, 3: 0x88, 4: 0x86, 5: 0x87}[code]


def test_connack_names_the_limits_of_the_broker() -> None:
    body = (
        b"\1\0"
        + bytes([34])
        + b"\x21\0\x0a\x27\0\0\x10\0\x24\1\x25\0\x13\0\x3c"
        + b"\x26"
        + text("a")
        + text("b")
        + b"\x28\0"
        + b"\x22\0\1"
        + b"\x11\0\0\0\x09\x2a\0"
    )
    assert connack(body, mqtt5=True) == (0, Connected(0, True, 10, 4096, 1, False, 60, 9, 1, False, False))
    assert connack(CONNACK["3.1.1"][2:], mqtt5=False) == (0, Connected(0, False))


@pytest.mark.parametrize("name", ["a\ufeffb", "\0", "", "é" * 999])
def test_no_text_of_connack_can_be_wrong(name: str) -> None:
    """U+FEFF is legal (MQTT-1.5.4-3), and other properties of a broker cause no error."""
    for kind in b"\x12\x15\x16\x1a\x1c\x1f":
        properties = bytes([kind]) + text(name)
        body = b"\0\0" + packet(0, properties)[1:]
        assert connack(body, mqtt5=True) == (0, Connected(0, False))


def test_any_maximum_packet_size_is_taken() -> None:
    for size in (1, 268_435_455, 268_435_460, 2**32 - 1):
        assert connack(b"\0\0\5\x27" + struct.pack("!I", size), mqtt5=True)[1].maximum_packet_size == size


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "no reason code"),
        (b"\0", "no reason code"),
        (b"\0\x07\0", "the reason code 7"),
        (b"\0\0\xff\xff\xff\xff\xff", "has no end"),
        (b"\0\0\x7f", "longer than the packet"),
        (b"\0\0\3\x21\0", "longer than the packet"),
        (b"\0\0\2\x21\0", "end within one of them"),
        (b"\0\0\3\x1f\0\5", "end within one of them"),
        (b"\0\0\1\x26", "end within one of them"),
        (b"\0\0\1\x99", "the property 153"),
        (b"\0\0\3\x21\0\0", "the Receive Maximum 0"),
        (b"\0\0\5\x27\0\0\0\0", "the Maximum Packet Size 0"),
    ],
)
def test_a_malformed_connack_is_named(body: bytes, why: str) -> None:
    with pytest.raises(MalformedError, match=why):
        connack(body, mqtt5=True)


def test_what_mqtt_has_no_packet_for_is_an_error_of_its_caller() -> None:
    with pytest.raises(ValueError, match="too long"):
        subscribe_packet(1, [Subscription("x" * 65_536)], mqtt5=True)
    with pytest.raises(ValueError, match="surrogates"):
        unsubscribe_packet(1, ["\ud800"], mqtt5=False)


def test_a_session_expiry_that_connect_cannot_carry_is_refused_in_the_settings() -> None:
    """MQTT 5, 3.1.2.11.2: four bytes, of which the largest number means that the session does not expire."""
    settings = MqttSettings(session_expiry="4294967295s")
    assert b"\x11\xff\xff\xff\xff" in connect_packet(settings, persistent=True, receive_maximum=1)
    with pytest.raises(ValueError, match="session_expiry"):
        MqttSettings(session_expiry="4294967296s")
