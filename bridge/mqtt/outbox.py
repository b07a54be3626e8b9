"""The publishes of one link that are not confirmed yet: which waits, which is in flight, what is sent again. Pure.

After a lost connection everything unconfirmed goes again, in the order in which it was given, under new packet
identifiers: the broker may then have it twice, never out of order and never not at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from bridge.mqtt.types import Confirmation, PublishProperties

__all__ = ["Outbox", "Outgoing"]


class Outgoing:
    """A publish of ours, from the call of ``publish`` until its confirmation."""

    __slots__ = ("confirmed", "payload", "properties", "qos", "retain", "sent", "topic")

    def __init__(
        self,
        topic: str,
        payload: bytes,
        qos: int,
        retain: bool,
        properties: PublishProperties | None,
        confirmed: Callable[[Confirmation], None] | None,
        sent: Callable[[], None] | None = None,
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.properties = properties
        self.confirmed = confirmed
        self.sent = sent


class Outbox:
    """Bounded in flight: at most ``window`` publishes, and at most what the broker takes, are sent unconfirmed.

    ``put`` may be called from any thread, everything else from the loop thread.
    """

    def __init__(self, window: int) -> None:
        # Half the packet identifiers: paho hands them out in a circle and must not meet one in flight.
        self._window = min(window, 32767)
        self._peer_window = 65535
        self._waiting: deque[Outgoing] = deque()
        self._in_flight: dict[
            int, Outgoing
        ] = {}  # by packet identifier; insertion order is the order of sending

    @property
    def unconfirmed(self) -> int:
        """How many publishes wait or are in flight."""
        return len(self._waiting) + len(self._in_flight)

    def put(self, outgoing: Outgoing) -> None:
        """Append one publish."""
        self._waiting.append(outgoing)

    def connected(self, peer_window: int) -> None:
        """Note the broker's Receive Maximum."""
        self._peer_window = peer_window

    def next(self) -> Outgoing | None:
        """Take the publish that is to be sent now, None when there is none or the window is full."""
        if not self._waiting or len(self._in_flight) >= min(self._window, self._peer_window):
            return None
        return self._waiting.popleft()

    def put_back(self, outgoing: Outgoing) -> None:
        """Have it sent before all that waits: it was taken, and could not be sent."""
        self._waiting.appendleft(outgoing)

    def sent(self, mid: int, outgoing: Outgoing) -> None:
        """Note the packet identifier under which it went out, and tell it."""
        self._in_flight[mid] = outgoing
        if outgoing.sent is not None:
            outgoing.sent()

    def confirmed(self, mid: int) -> Outgoing | None:
        """Take the publish that ``mid`` confirms; None when it is not ours."""
        return self._in_flight.pop(mid, None)

    def connection_lost(self) -> None:
        """Put what is in flight before what waits, in order."""
        self._waiting.extendleft(reversed(self._in_flight.values()))
        self._in_flight.clear()

    def abandon(self) -> int:
        """Drop everything. Returns how many publishes that were."""
        dropped = self.unconfirmed
        self._waiting.clear()
        self._in_flight.clear()
        return dropped
