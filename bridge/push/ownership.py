"""Ownership proof: how an owner knows that no other process has owned its partition (H23).

Pulsar's client does not report that a producer was replaced: the producer waits, and is granted access again when the
successor leaves, stale writes included. So at each MQTT connection the owner writes a record of its own, and reads the
cursors partition from the last record that was certainly its own up to the new one.

A successor connects to the MQTT broker before it writes, which ends our connection. But a connection that looks open may
have ended long ago. So the owner pings the broker: whatever the broker answers on this connection it answers before any
successor has come, and what Pulsar had stored at the time of the ping is certainly our own.
"""

from __future__ import annotations

import os
import socket
import uuid
from typing import Final

from bridge.errors import FencedError
from bridge.mqtt.client import Link
from bridge.pulsar.client import MessageId
from bridge.push.cursor import OWNER_KEY, OwnerRecord
from bridge.push.cursor_log import CursorLog

__all__ = ["OwnRecord", "Ownership", "Proof"]

_EVERY_S: Final = 5.0
"""After a lost connection the owner reads no more than this time of records in vain."""


class OwnRecord:
    """The last record that no successor's record can precede."""

    def __init__(self) -> None:
        self.record: MessageId | None = None
        self._asked: tuple[int, MessageId] | None = None
        self._seen: MessageId | None = None
        self._next = 0.0

    def question(self, stored: MessageId | None, now: float) -> MessageId | None:
        """Return the record for which the broker is to be pinged now, None for none. ``stored``: the last one stored."""
        if stored is None or stored is self._seen or self._asked is not None or now < self._next:
            return None
        return stored

    def asked(self, number: int, stored: MessageId, now: float) -> None:
        """Ping ``number`` of this connection was sent after ``stored`` was."""
        self._asked = number, stored
        self._seen = stored
        self._next = now + _EVERY_S

    def answered(self, count: int) -> None:
        """The broker has answered so many pings on this connection."""
        if self._asked is not None and count >= self._asked[0]:
            self.record, self._asked = self._asked[1], None

    def lost(self) -> None:
        """The connection has ended, without further answers."""
        self._asked = self._seen = None


class Proof:
    """Token of an owner record; ``epoch`` is the MQTT connection that it is for, 0 for none."""

    __slots__ = ("epoch", "record", "stored")

    def __init__(self, record: OwnerRecord, epoch: int) -> None:
        self.record = record
        self.epoch = epoch
        self.stored = False


class Ownership:
    """The owner records of one session, and what they prove."""

    def __init__(self, cursors: CursorLog) -> None:
        self._cursors = cursors
        self._name = uuid.uuid4().hex
        self._serial = 0
        self._own = OwnRecord()
        self._read_to: MessageId | None = None
        self._connected = False
        self.proven_epoch = 0
        """The connection for which Pulsar has confirmed the ownership."""
        self.lost = False
        """The connection was lost: no further connect before Pulsar confirms the ownership."""

    @property
    def name(self) -> str:
        """A name that no other session has."""
        return self._name

    @property
    def _token(self) -> str:
        return f"{socket.gethostname()}/{os.getpid()}/{self._name}"

    @property
    def first(self) -> OwnerRecord:
        """The first record of this session."""
        return OwnerRecord(self._token, 1)

    def write(self, epoch: int, *, clean: bool = False) -> Proof:
        """Write an owner record; its ``Proof`` is the token of the ``Stored`` that follows."""
        self._serial += 1
        proof = Proof(OwnerRecord(self._token, self._serial, clean), epoch)
        self._cursors.write_record(OWNER_KEY, proof.record.encode(), proof)
        return proof

    def connected(self, epoch: int) -> None:
        """An MQTT connection was accepted: prove the ownership on it."""
        self._connected = True
        self.write(epoch)

    def disconnected(self) -> None:
        """The MQTT connection ended, or an attempt failed."""
        self.lost = self.lost or self._connected
        self._connected = False
        self._own.lost()

    def read(self, until: MessageId) -> None:
        """The cursors were read up to our record ``until``."""
        self._own.record = self._read_to = until

    def accept(self, proof: Proof) -> None:
        """Pulsar has stored an owner record. Raises FencedError if another process has owned the partition since."""
        if self._read_to is not None:
            start = self._own.record or self._read_to
            if self._cursors.replaced_since(start, proof.record):
                raise FencedError("another process owned it in between")
        proof.stored = True
        if proof.epoch:
            self.proven_epoch = proof.epoch

    def ping(self, link: Link, now: float) -> None:
        """Ask the broker, now and then, whether the connection is alive, to prove the last stored record."""
        self._own.answered(link.keepalive.answered)
        stored = self._own.question(self._cursors.last_stored, now)
        if stored is not None:
            self._own.asked(link.ping(), stored, now)
