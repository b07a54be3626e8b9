"""The one module that imports paho, which writes CONNECT, SUBSCRIBE, UNSUBSCRIBE and DISCONNECT, and reads CONNACK.

paho's parser raises KeyError and IndexError for what some brokers send, and refuses texts that MQTT allows. So it sees
no other packet of the broker: those are read by ``publishes`` and ``packets``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from bridge.mqtt.buffered_socket import BufferedSocket, limited, secured
from bridge.mqtt.types import Subscription, Will
from bridge.settings.mqtt import MqttSettings

__all__ = ["Connack", "PahoClient", "reason_name"]

_VERSIONS: Final = {"3.1": paho.MQTTv31, "3.1.1": paho.MQTTv311, "5": paho.MQTTv5}
_WRONG_VERSION: Final = 0x84


def reason_name(code: int) -> str:
    """Return the name of a reason code of DISCONNECT (MQTT 5, 3.14.2.1)."""
    try:
        return str(ReasonCode(PacketTypes.DISCONNECT, identifier=code))
    except (KeyError, ValueError):  # paho's errors for a code that MQTT lacks, and for one of other packets
        return f"unknown reason {code:#x}"


class Connack(NamedTuple):
    """What a CONNACK said; ``properties`` by their names in the specification, without spaces.

    ``reason`` is that of MQTT 5 in all versions: below 0x80 the broker accepted us.
    """

    session_present: bool
    reason: int
    reason_name: str
    properties: dict[str, Any]


class _Paho(paho.Client):
    """paho's client behind a buffered socket; it writes through us, never by itself in a callback."""

    settings: MqttSettings
    max_packet_bytes: int

    def _create_socket(self) -> Any:
        raw = limited(super()._create_socket(), self.settings)
        return BufferedSocket(secured(raw, self.settings), self.max_packet_bytes)


class PahoClient:
    """The handshakes of one MQTT session. All methods on the loop thread of its link."""

    def __init__(
        self,
        settings: MqttSettings,
        client_id: str,
        *,
        persistent: bool,
        will: Will | None,
        max_packet_bytes: int,
        closing: Callable[[Any], None],
    ) -> None:
        """``closing`` is called with each socket that paho is about to close."""
        self._settings = settings
        self._persistent = persistent
        self._mqtt5 = settings.protocol == "5"
        self._connack: Connack | None = None
        self._paho = _Paho(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=_VERSIONS[settings.protocol],
            reconnect_on_failure=False,
            manual_ack=True,
            clean_session=None if self._mqtt5 else not persistent,
        )
        self._paho.settings = settings
        self._paho.max_packet_bytes = max_packet_bytes
        self._paho.connect_timeout = settings.connect_timeout_s
        if will is not None:
            self._paho.will_set(will.topic, will.payload, will.qos, will.retain)
        self._paho.on_connect = self._on_connect
        self._paho.on_socket_close = lambda _client, _data, sock: closing(sock)
        self._paho.on_socket_register_write = lambda *_: None  # paho queues, ``write`` writes

    def connect(self, receive_maximum: int) -> BufferedSocket | None:
        """Dial the broker and write CONNECT. Returns the socket, None when the broker closed it at once.

        Raises OSError or ValueError when there is no connection, ConfigError for a file of TLS.
        """
        s = self._settings
        options: dict[str, Any] = {}
        if self._mqtt5:
            properties: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.ReceiveMaximum = receive_maximum
            if self._persistent:
                properties.SessionExpiryInterval = s.session_expiry_s
            options = {"clean_start": not self._persistent, "properties": properties}
        self._paho.username_pw_set(*s.credentials())
        self._paho.connect(s.host, s.port, keepalive=s.keep_alive_s, **options)
        sock: Any = self._paho.socket()
        self.write()
        return sock  # type: ignore[no-any-return]

    def _on_connect(self, _client: Any, _data: object, flags: Any, reason: Any, properties: Any) -> None:
        told = {} if properties is None else vars(properties)
        self._connack = Connack(bool(flags.session_present), reason.value, str(reason), told)

    def read_connack(self, body: bytes) -> Connack:
        """Read the CONNACK that the socket has lent us; ``body`` is what follows its fixed header.

        Raises ValueError when it cannot be read.
        """
        why = ""
        try:
            self._paho.loop_read()
        except Exception as e:  # noqa: BLE001 what it raises depends on the broker's bytes
            why = f": {type(e).__name__} {e}"
        connack, self._connack = self._connack, None
        if (
            connack is None and not self._mqtt5 and body[1:2] == b"\1"
        ):  # paho calls back for all codes but this one
            return Connack(False, _WRONG_VERSION, "Unsupported protocol version", {})
        if connack is None:
            raise ValueError(f"it cannot be read{why}")
        return connack

    @property
    def keep_alive_s(self) -> float:
        """The keep-alive in force: the broker's Server Keep Alive where it named one (MQTT 5, 3.2.2.3.14)."""
        return float(self._paho.keepalive)

    def subscribe(self, subscriptions: Sequence[Subscription]) -> None:
        """Write one SUBSCRIBE."""

        def how(s: Subscription) -> Any:
            options = SubscribeOptions(s.qos, False, s.retain_as_published, s.retain_handling)
            return options if self._mqtt5 else s.qos

        self._paho.subscribe([(s.filter, how(s)) for s in subscriptions])
        self.write()

    def unsubscribe(self, filters: Sequence[str]) -> None:
        """Write one UNSUBSCRIBE."""
        self._paho.unsubscribe(list(filters))
        self.write()

    def disconnect(self) -> None:
        """Write DISCONNECT."""
        self._paho.disconnect()
        self.write()

    def write(self) -> None:
        """Have paho write what it has queued into the socket's buffer, in which the order is that of the calls."""
        self._paho.loop_write()
