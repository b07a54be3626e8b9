"""One task's connection to an MQTT broker. It publishes in order and finds publishes that break the connection.

A broker before MQTT 5, and many a later one, announces no limits. At a packet that is too large, or on a topic that is
not allowed, it closes the connection. All unconfirmed publishes are lost with it. That packet would be the first on
each new connection, and would block all later ones.

So after such a disconnect all unconfirmed publishes are suspects. The client sends suspects one at a time, in their
order, and waits for each confirmation. The broker may close the connection at one publish ``CLOSES`` more times in
a row, each within ``AT_ONCE_S`` of sending it alone. Then the client returns it to the sender and continues.
A failed connection attempt in between resets the count, because then the broker itself had a fault. The sender bounds
the cost. A publish of QoS 0 is done when it is handed to the socket, so one that breaks the connection is lost.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bridge.mqtt.device import DeviceClient
from bridge.mqtt.refusals import AT_ONCE_S, perhaps_for_a_packet
from bridge.mqtt.types import Disconnected, PublishProperties
from bridge.settings.mqtt import MqttSettings

__all__ = ["CLOSES", "RowClient", "Sending"]

CLOSES: Final = 2


@dataclass(slots=True, eq=False)
class Sending:
    """One publish, until it is confirmed or returned. Both callbacks run on the link's thread and must not block."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: PublishProperties | None
    confirmed: Callable[[int], None]
    given_back: Callable[[str], None]
    """The broker closes the connection at this publish; the argument is the reason."""
    suspect: bool = False
    closes: int = 0
    """Disconnects in a row at which it was sent alone."""
    sent_at: float = 0.0


class RowClient(DeviceClient):
    """An MQTT client that resends unconfirmed publishes, but not forever one that breaks the connection."""

    def __init__(self, settings: MqttSettings, client_id: str, *, window: int) -> None:
        super().__init__(settings, client_id, window=window)
        self._window = window
        self._waiting: deque[Sending] = deque()
        # In the order of sending. Only the link's thread uses it.
        self._under_way: dict[Sending, None] = {}

    def send(self, one: Sending) -> None:
        """Queue a publish. From any thread; the queue is bounded by the caller."""
        self._waiting.append(one)
        self.link.wake()

    # --- on the link's thread ---

    def on_turn(self, now: float) -> None:
        """Hand over the publishes that the window allows."""
        super().on_turn(now)
        while self.link.connected and self._waiting and self._may_go(self._waiting[0]):
            one = self._waiting.popleft()
            self._under_way[one] = None
            one.sent_at = time.monotonic()
            self.link.publish(
                one.topic,
                one.payload,
                qos=one.qos,
                retain=one.retain,
                properties=one.properties,
                confirmed=self._confirming(one),
            )

    def on_disconnected(self, event: Disconnected) -> None:
        """Find out whether the broker closes the connection at an unconfirmed publish; resend the others."""
        super().on_disconnected(event)
        self.link.abandon()  # this class decides about resending
        ended, self._under_way = list(self._under_way), {}
        if perhaps_for_a_packet(event):
            ended = self._to_resend(ended, event.why)
        else:
            for one in ended:
                one.closes = 0
            if self._waiting:
                self._waiting[0].closes = 0
        self._waiting.extendleft(reversed(ended))

    def _may_go(self, one: Sending) -> bool:
        if not self._under_way:
            return True
        alone = one.suspect or next(iter(self._under_way)).suspect
        return not alone and len(self._under_way) < self._window

    def _confirming(self, one: Sending) -> Callable[[int], None]:
        def done(reason: int) -> None:
            del self._under_way[one]
            one.confirmed(reason)
            if self._waiting and not one.qos:  # the link reports this after the end of its turn
                self.link.wake()

        return done

    def _to_resend(self, ended: list[Sending], why: str) -> list[Sending]:
        """Return the publishes to resend, after the broker closed the connection."""
        if len(ended) != 1 or not ended[0].suspect:
            for one in ended:
                one.suspect = True
            return ended
        (one,) = ended
        one.closes = one.closes + 1 if time.monotonic() - one.sent_at < AT_ONCE_S else 0
        if one.closes < CLOSES:
            return ended
        one.given_back(why)
        return []
