"""The unconfirmed publishes of one link: waiting, in flight, or to be resent.

After a lost connection every unconfirmed publish is resent, in the original order, under new packet identifiers. The
broker may then have it twice, but never out of order, and always at least once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bridge.mqtt.packets import MalformedError
from bridge.mqtt.types import PublishProperties

__all__ = ["Outbox", "Outgoing"]

_MIDS: Final = 0x8000
"""Packet identifiers from here on are for publishes; the others are for SUBSCRIBE and UNSUBSCRIBE."""


@dataclass(slots=True, eq=False)
class Outgoing:
    """A publish of ours, from the call of ``publish`` until its confirmation."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: PublishProperties | None
    confirmed: Callable[[int], None] | None
    sent: Callable[[], None] | None = None


class Outbox:
    """Bounded in flight: at most ``window`` publishes, and at most the broker's Receive Maximum, are unconfirmed.

    ``put`` may be called from any thread, everything else from the loop thread.
    """

    def __init__(self, window: int) -> None:
        self._window = min(window, _MIDS - 1)
        self._peer_window = 65535
        self._waiting: deque[Outgoing] = deque()
        # By packet identifier; insertion order is the order of sending.
        self._in_flight: dict[int, Outgoing] = {}
        self._received: dict[int, int] = {}  # at QoS 2, the reason of PUBREC
        self._last_mid = _MIDS
        self._last_request = 0
        self._asked: dict[int, int] = {}  # how many filters a SUBSCRIBE has

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
        """Take the publish to send now, None if none waits or the window is full."""
        if not self._waiting or len(self._in_flight) >= min(self._window, self._peer_window):
            return None
        return self._waiting.popleft()

    def free_mid(self) -> int:
        """Return a packet identifier that is not in use (MQTT-2.2.1-4)."""
        mid = self._last_mid
        while True:
            mid = mid + 1 if mid < 65_535 else _MIDS
            if mid not in self._in_flight:
                self._last_mid = mid
                return mid

    def request_mid(self, filters: int = 0) -> int:
        """Return the packet identifier of the next UNSUBSCRIBE, or SUBSCRIBE to ``filters``; few wait at a time."""
        self._last_request = self._last_request % (_MIDS - 1) + 1
        if filters:
            self._asked[self._last_request] = filters
        return self._last_request

    def answered(self, mid: int, codes: list[int]) -> list[int]:
        """Return the codes of a SUBACK; none if it does not answer a SUBSCRIBE of ours.

        Raises MalformedError if codes and filters differ in number (MQTT-3.8.4-6): which are granted is unknown.
        """
        asked = self._asked.pop(mid, 0)
        if asked and asked != len(codes):
            raise MalformedError(f"it has {len(codes)} reason codes for {asked} filters")
        return codes if asked else []

    def sent(self, mid: int, outgoing: Outgoing) -> None:
        """Note the packet identifier of a sent publish, 0 at QoS 0, and call its ``sent``."""
        if mid:
            self._in_flight[mid] = outgoing
        if outgoing.sent is not None:
            outgoing.sent()

    def received(self, mid: int, reason: int) -> bool:
        """Note a PUBREC without a failure. Returns whether the publish is ours, so that PUBREL follows."""
        if mid not in self._in_flight:
            return False
        self._received[mid] = reason
        return True

    def confirmed(self, mid: int, reason: int) -> tuple[Outgoing, int] | None:
        """Take the publish that ``mid`` confirms, and its reason; None if it is not ours.

        At QoS 2 the reason is in PUBREC, because PUBCOMP lacks one (MQTT 5, 3.7.2.1).
        """
        outgoing = self._in_flight.pop(mid, None)
        received = self._received.pop(mid, 0)
        return None if outgoing is None else (outgoing, reason or received)

    def connection_lost(self) -> None:
        """Put the publishes in flight before the waiting ones, in order."""
        self._waiting.extendleft(reversed(self._in_flight.values()))
        self._in_flight.clear()
        self._received.clear()
        self._asked.clear()

    def abandon(self) -> int:
        """Drop every publish. Returns how many."""
        dropped = self.unconfirmed
        self._waiting.clear()
        self._in_flight.clear()
        self._received.clear()
        return dropped
