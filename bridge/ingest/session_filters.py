"""Decides which filters to subscribe to on a connection, and knows which of them the broker granted.

For each SUBSCRIBE the broker resends the retained messages. So it is sent only for filters that the broker's session
lacks (H6). CONNACK's session-present flag and the filters of the last SUBACK show these. The caller stores the filters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

import structlog

from bridge.errors import DeniedError
from bridge.mqtt.refusals import subscriber, subscription_remedy
from bridge.mqtt.types import Subscription
from bridge.settings.ingest import IngestSettings
from bridge.settings.mqtt import MqttSettings

__all__ = ["NOT_GRANTED", "SessionFilters", "wanted_subscriptions"]

log = structlog.get_logger("ingest")

NOT_GRANTED: Final = 0x80
"""Instead of a QoS: the session may lack the filter. It is SUBACK's code for a failure (MQTT 5, 3.9.3)."""


def wanted_subscriptions(filters: Sequence[str], ingest: IngestSettings) -> tuple[Subscription, ...]:
    """Return the subscriptions for ``filters``.

    The RETAIN flag distinguishes replayed from live messages only if the broker clears it on live ones. So Retain As
    Published is set only for ``keep``, which needs no distinction. Otherwise a live reading that a device publishes
    with RETAIN, as many do, would be skipped as a replayed one.
    """
    handling = 2 if ingest.retained == "skip" else 1
    return tuple(Subscription(f, ingest.qos, ingest.retained == "keep", handling) for f in filters)


class SessionFilters:
    """The filters of one session: wanted, requested on this connection, and granted by the broker.

    ``granted`` are the last known filters of the broker's session with their QoS or ``NOT_GRANTED``, None if unknown. Readings do not need
    the filter ``optional``. ``remember`` is called with the filters and QoS that the broker granted; it must not block.
    """

    def __init__(
        self,
        wanted: tuple[Subscription, ...],
        granted: dict[str, int] | None,
        *,
        optional: str | None,
        remember: Callable[[dict[str, int]], None],
    ) -> None:
        self.granted = granted
        self._wanted = wanted
        self._requested: tuple[Subscription, ...] = ()
        self._optional = optional
        self._remember = remember

    def connected(self, *, session_present: bool) -> tuple[tuple[Subscription, ...], tuple[str, ...]]:
        """Return the filters to subscribe to and those to unsubscribe from on a new connection."""
        known = (self.granted or {}) if session_present else {}
        if not session_present:
            self.doubt()
        self._requested = tuple(s for s in self._wanted if known.get(s.filter) != s.qos)
        return self._requested, tuple(f for f in known if f not in self.names)

    def doubt(self) -> None:
        """The broker's session may be a new one: have the next connection subscribe to all filters.

        The next CONNACK reports that session as present, although no SUBACK has confirmed a filter of it.
        """
        if self.granted:
            self.granted = dict.fromkeys(self.granted, NOT_GRANTED)
            self._remember(self.granted)

    def subscribed(self, codes: Sequence[int], settings: MqttSettings, client_id: str) -> int:
        """Store the granted filters and return how many were requested.

        Raises DeniedError if the broker refused a required one.
        """
        refused: set[str] = set()
        for subscription, code in zip(self._requested, codes, strict=False):
            if code >= 0x80 and subscription.filter == self._optional:
                refused.add(subscription.filter)
                log.warning(
                    "the MQTT broker refused the filter for requests to resume. Action: allow "
                    f"{subscriber(settings, client_id)} to read it, or set ingest.resume_topic to null",
                    filter=subscription.filter,
                )
            elif code >= 0x80:
                raise DeniedError(
                    f"the MQTT broker refused the subscription to {subscription.filter!r} (code {code:#x})",
                    remedy=f"{subscription_remedy(settings, client_id)}, or remove it from ingest.routes and "
                    "ingest.filters",
                )
            elif code < subscription.qos:
                log.warning(
                    "the MQTT broker granted a lower QoS, messages can be lost. Action: allow QoS 1 for this filter",
                    filter=subscription.filter,
                    granted=code,
                )
        self.store(refused)
        return len(self._requested)

    def store(self, refused: Collection[str] = ()) -> None:
        """Remember all filters but the refused ones as those of the broker's session."""
        self.granted = {s.filter: s.qos for s in self._wanted if s.filter not in refused}
        self._remember(self.granted)

    @property
    def names(self) -> list[str]:
        """The wanted filters."""
        return [s.filter for s in self._wanted]
