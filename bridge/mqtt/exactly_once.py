"""The QoS 2 messages that a broker sends us, from PUBLISH to PUBREL (MQTT 5, 4.3.3).

PUBREC is sent when the receiver of the message acknowledges it, as PUBACK at QoS 1. Until then the broker keeps the
message, and resends it after a lost connection. From PUBREC on the message is ours: a repetition of the same PUBLISH
gets another PUBREC and is not delivered a second time.
"""

from __future__ import annotations

from collections.abc import Sequence

from bridge.mqtt.packets import PUBACK, PUBREC, short_packet
from bridge.mqtt.types import Message

__all__ = ["ExactlyOnce"]


class ExactlyOnce:
    """The handshakes of one session; packet identifiers bound it to 65,535."""

    def __init__(self) -> None:
        self._delivered: set[int] = set()  # on this connection, and not acknowledged
        self._received: set[int] = set()  # PUBREC was sent, and no PUBREL came

    def connected(self, *, session_present: bool) -> None:
        """Begin a connection. The broker resends unacknowledged messages, or has lost the session."""
        self._delivered.clear()
        if not session_present:
            self._received.clear()

    def arrived(self, messages: Sequence[Message]) -> tuple[list[Message], list[int]]:
        """Return the messages to deliver, and the packet identifiers that get PUBREC at once.

        Only a PUBLISH with DUP is a repetition (MQTT-3.3.1-1); any other one is a new message.
        """
        new: list[Message] = []
        repeated: list[int] = []
        for message in messages:
            if message.qos == 2 and message.mid:
                if message.dup and message.mid in self._received:
                    repeated.append(message.mid)
                    continue
                if message.dup and message.mid in self._delivered:
                    continue
                self._received.discard(message.mid)
                self._delivered.add(message.mid)
            new.append(message)
        return new, repeated

    def acknowledgements(self, mids: Sequence[int]) -> bytes | None:
        """Return the packets that acknowledge messages, in order; None if all of them are of QoS 1."""
        if not self._delivered:
            return None
        packets: list[bytes] = []
        for mid in mids:
            two = mid in self._delivered
            if two:
                self._delivered.discard(mid)
                self._received.add(mid)
            packets.append(short_packet(PUBREC if two else PUBACK, mid))
        return b"".join(packets)

    def released(self, mid: int) -> None:
        """Note PUBREL: the packet identifier is free."""
        self._received.discard(mid)
