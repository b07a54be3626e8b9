"""One task's connection to an MQTT broker: publishes in their order, and which of them the broker closes it at.

A broker before MQTT 5, and many a later one, says nothing of its limits: at a packet that is too large for it, or on a
topic that it does not allow, it closes the connection, with all that is under way on it. That packet would come first on
each new connection, and nothing behind it would be taken any more.

So after such an end what was under way is suspect, and suspects go out one at a time, in their order, each once the one
before is confirmed. The publish at which the broker closes the connection ``CLOSES`` more times in a row, each within
``AT_ONCE_S`` of sending it alone, is given back to whoever sent it, and the others go on. An attempt to connect that fails
in between acquits it: then it is the broker that was in trouble. What that costs is for the sender to bound. A publish
of QoS 0 is done when it was handed to the socket, so it is lost where it is the one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bridge.mqtt.device import DeviceClient
from bridge.mqtt.refusals import AT_ONCE_S, perhaps_for_a_packet
from bridge.mqtt.types import Confirmation, Disconnected, PublishProperties
from bridge.settings.mqtt import MqttSettings

__all__ = ["CLOSES", "RowClient", "Sending"]

CLOSES: Final = 2


@dataclass(slots=True, eq=False)
class Sending:
    """One publish, until it is confirmed or given back. Both callbacks run on the link's thread and must not block."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: PublishProperties | None
    confirmed: Callable[[Confirmation], None]
    given_back: Callable[[str], None]
    """The broker closes the connection at it; takes how it did so."""
    suspect: bool = False
    closes: int = 0
    """Ends of the connection in a row at which it went out alone."""
    sent_at: float = 0.0


class RowClient(DeviceClient):
    """An MQTT client that sends again what a lost connection left unconfirmed, but not for ever what broke it."""

    def __init__(self, settings: MqttSettings, client_id: str, *, window: int) -> None:
        super().__init__(settings, client_id, window=window)
        self._window = window
        self._waiting: deque[Sending] = deque()
        # In the order of sending. This one and all below belong to the link's thread.
        self._under_way: dict[Sending, None] = {}

    def send(self, one: Sending) -> None:
        """Queue a publish. From any thread; the queue is bounded by the caller."""
        self._waiting.append(one)
        self.link.wake()

    # --- on the link's thread ---

    def on_turn(self, now: float) -> None:
        """Hand over what may be under way now."""
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
        """Find out whether the broker closes at one of those under way; the others go again."""
        super().on_disconnected(event)
        self.link.abandon()  # what is sent again is decided here
        ended, self._under_way = list(self._under_way), {}
        if perhaps_for_a_packet(event):
            ended = self._judged(ended, event.why)
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

    def _confirming(self, one: Sending) -> Callable[[Confirmation], None]:
        def done(confirmation: Confirmation) -> None:
            del self._under_way[one]
            one.confirmed(confirmation)
            if self._waiting and not one.qos:  # told after this turn's end
                self.link.wake()

        return done

    def _judged(self, ended: list[Sending], why: str) -> list[Sending]:
        """Return which of those at which the broker closed the connection go again."""
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
