"""Streams of MQTT packets as a broker sends them, well-formed and not, and what paho alone makes of one."""

from __future__ import annotations

import socket
import struct
from typing import Any

from hypothesis import strategies as st
from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from bridge.mqtt.types import Message, PublishProperties
from tests.support.raw_mqtt import packet, variable

__all__ = ["CONNACK", "PROTOCOLS", "PahoOn", "by_paho", "packets", "plain_publish", "publishes"]

PROTOCOLS = {"3.1": paho.MQTTv31, "3.1.1": paho.MQTTv311, "5": paho.MQTTv5}
CONNACK = {"3.1": b"\x20\2\0\0", "3.1.1": b"\x20\2\0\0", "5": b"\x20\3\0\0\0"}
_NO_PROPERTIES = len(vars(Properties(PacketTypes.PUBLISH)))  # type: ignore[no-untyped-call]

text = st.text(max_size=12) | st.sampled_from(["a/b", "ä/é", "\0", "\ufeff", "a" * 200])
field = st.builds(lambda b: struct.pack("!H", len(b)) + b, text.map(str.encode) | st.binary(max_size=8))
_REMAINING = st.builds(lambda first, rest: bytes([first]) + rest, st.integers(0, 255), st.binary(max_size=6))


one_property = st.one_of(
    st.integers(0, 2).map(lambda n: bytes([1, n])),
    st.integers(0, 2**32 - 1).map(lambda n: b"\2" + struct.pack("!L", n)),
    st.tuples(st.sampled_from([b"\3", b"\x08", b"\x09"]), field).map(b"".join),
    st.integers(0, 300).map(lambda n: b"\x0b" + variable(n)),
    st.integers(0, 3).map(lambda n: b"\x23" + struct.pack("!H", n)),
    st.tuples(st.just(b"\x26"), field, field).map(b"".join),
    st.tuples(st.just(b"\x26"), field, field).map(b"".join),
    _REMAINING,
)
_properties = st.one_of(
    st.just(b"\0"),
    st.lists(one_property, max_size=5).map(b"".join).map(lambda b: variable(len(b)) + b),
    st.tuples(st.integers(0, 200).map(variable), st.binary(max_size=20)).map(b"".join),
)
_payload = st.one_of(
    st.binary(max_size=40),
    st.integers(0, 20_000).map(lambda n: b"x" * n),
    st.just(70_000).map(lambda n: b"y" * n),
)
_topic = st.one_of(st.sampled_from([b"a/b", b"plant/1"]), text.map(str.encode), st.binary(max_size=6))


@st.composite
def publishes(draw: st.DrawFn, protocol: str) -> bytes:
    """A PUBLISH, of any QoS, the forbidden 3 included, with any properties, some of them forbidden or malformed."""
    qos = draw(st.sampled_from([0, 1, 1, 1, 2, 3]))
    first = 0x30 | draw(st.booleans()) << 3 | qos << 1 | draw(st.booleans())
    topic = draw(_topic)
    body = struct.pack("!H", len(topic)) + topic
    if qos:
        body += struct.pack("!H", draw(st.integers(0, 65_535)))
    if protocol == "5":
        body += draw(_properties)
    return packet(first, body + draw(_payload))


def plain_publish(topic: str, payload: bytes, mid: int, *, protocol: str) -> bytes:
    """A PUBLISH at QoS 1 as devices send most of them."""
    name = topic.encode()
    empty = b"\0" if protocol == "5" else b""
    return packet(0x32, struct.pack("!H", len(name)) + name + struct.pack("!H", mid) + empty + payload)


def packets(protocol: str) -> st.SearchStrategy[bytes]:
    """One packet of a broker's stream, in a sound frame: mostly a PUBLISH, with any body, now and then another packet."""
    publish = publishes(protocol)
    return st.one_of(
        publish,
        publish,
        st.builds(lambda n: plain_publish("plant/1", b"z" * n, 7, protocol=protocol), st.integers(0, 300)),
        st.builds(lambda flags, body: packet(0x30 | flags, body), st.integers(0, 15), st.binary(max_size=60)),
        st.just(b"\xd0\0"),  # PINGRESP
        st.integers(1, 20).map(lambda mid: b"\x62\2" + struct.pack("!H", mid)),  # PUBREL
        st.builds(
            lambda mid, code: packet(0x40, struct.pack("!HB", mid, code)),
            st.integers(0, 9),
            st.integers(0, 255),
        ),
    )


class PahoOn(paho.Client):
    """paho as it is, on a socket that is given to it."""

    def __init__(self, sock: socket.socket, protocol: str, clean_session: bool | None = None) -> None:
        version = PROTOCOLS[protocol]
        super().__init__(
            CallbackAPIVersion.VERSION2,
            client_id="x",
            protocol=version,
            manual_ack=True,
            reconnect_on_failure=False,
            clean_session=clean_session,
        )
        self._given = sock

    def _create_socket(self) -> Any:
        return self._given


def by_paho(stream: bytes, protocol: str) -> tuple[list[Message], bool]:
    """What paho's own decoder gives for a stream: the messages in order, and whether it ended the connection.

    The connection is left open behind the stream, so an end is paho's verdict on what it read.
    """
    found: list[Message] = []
    near, far = socket.socketpair()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    client = PahoOn(near, protocol)
    client.on_message = lambda _client, _data, message: found.append(_ours(message))
    lost: list[object] = []
    client.on_disconnect = lambda *args: lost.append(args)
    try:
        client.connect("peer.invalid")
        far.setblocking(False)
        rest = CONNACK[protocol] + stream
        while rest and not lost:
            rest = rest[far.send(rest) :]
            _read_all(client, lost)
        return found, bool(lost)
    finally:
        client.on_disconnect = None
        near.close()
        far.close()


def _read_all(client: paho.Client, lost: list[object]) -> None:
    sock: Any = client.socket()
    while not lost:
        try:
            sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        client.loop_read()


def _ours(message: paho.MQTTMessage) -> Message:
    try:
        topic = message.topic
    except UnicodeDecodeError:
        topic = message._topic.decode("utf-8", "surrogateescape")
    properties = None
    if message.properties is not None and len(vars(message.properties)) > _NO_PROPERTIES:
        found = vars(message.properties)
        properties = PublishProperties(
            user=tuple(found.get("UserProperty", ())),
            content_type=found.get("ContentType"),
            response_topic=found.get("ResponseTopic"),
            correlation_data=found.get("CorrelationData"),
            payload_format=found.get("PayloadFormatIndicator"),
            expiry_s=found.get("MessageExpiryInterval"),
        )
    return Message(topic, bytes(message.payload), message.qos, message.retain, message.dup, message.mid, properties)
