"""Which record of ours no successor's can precede: from there on is looked for one after a lost connection (H23). Pure.

A successor connects to the MQTT broker before it writes, which cuts our connection, but a connection that looks open may
have been cut long ago: of an end on a link that is down nobody hears, and Pulsar's may be back first. So the broker is
asked. What it answers on this connection it answers before any successor has come, and what Pulsar had stored when it
was asked is surely ours.
"""

from __future__ import annotations

from typing import Final

from bridge.pulsar.client import MessageId

__all__ = ["SurelyOurs"]

_EVERY_S: Final = 5.0
"""After a lost connection no more than this time of records is read in vain."""


class SurelyOurs:
    """What is known of one session."""

    def __init__(self) -> None:
        self.record: MessageId | None = None
        """The last one that is surely ours."""
        self._asked: tuple[int, MessageId] | None = None
        self._seen: MessageId | None = None
        self._next = 0.0

    def question(self, stored: MessageId | None, now: float) -> MessageId | None:
        """Return the record about which the MQTT broker is to be asked now, None for none. ``stored``: our last one."""
        if stored is None or stored is self._seen or self._asked is not None or now < self._next:
            return None
        return stored

    def asked(self, number: int, stored: MessageId, now: float) -> None:
        """Ping ``number`` of this connection went out after ``stored`` was."""
        self._asked = number, stored
        self._seen = stored
        self._next = now + _EVERY_S

    def answered(self, count: int) -> None:
        """The broker has answered so many pings on this connection."""
        if self._asked is not None and count >= self._asked[0]:
            self.record, self._asked = self._asked[1], None

    def lost(self) -> None:
        """The connection has ended: what it did not answer it never will."""
        self._asked = self._seen = None
