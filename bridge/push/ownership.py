"""The ownership of a partition, as its owner can prove it to itself."""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from bridge.contract.cursors import OWNER_KEY, OwnerRecord
from bridge.errors import FencedError
from bridge.mqtt.client import Link
from bridge.pulsar.client import MessageId
from bridge.pulsar.sending import Failed
from bridge.push.cursor_log import CursorLog
from bridge.threads import start_thread

__all__ = ["Checked", "Ownership", "Proof"]

_EVERY_S: Final = 5.0  # after a lost connection the owner reads no more than this time of records in vain


@dataclass(eq=False, slots=True)
class Proof:
    """Token of an owner record; ``epoch`` is the connection to the broker ``link`` that it is for, 0 for none."""

    record: OwnerRecord
    epoch: int
    link: str = ""
    stored: bool = False  # and Pulsar has confirmed the ownership until then


class Checked(NamedTuple):
    """Event: the records before that of a proof, which is at ``where``, were read; None if another process wrote some."""

    proof: Proof
    where: MessageId | None


@dataclass(eq=False, slots=True)
class _LinkProof:
    connected: bool = False
    proven_epoch: int = 0
    lost: Proof | None = None  # under way since the connection was lost


class Ownership:
    """The owner records of one session, and what they prove.

    Pulsar's client does not report that a producer was replaced before the next write. So at each MQTT connection, and after
    its loss, the owner writes a record of its own, and reads the cursors partition from the last record that was certainly
    its own up to the new one. It reads in a thread, one proof after the other: devices at other brokers do not wait for it.

    A successor connects to an MQTT broker before it writes, which ends our connection there. But a connection that looks
    open may have ended long ago. So the owner pings the brokers: whatever each answers on its connection it
    answers before any successor has come there, and what Pulsar had stored at the time of the pings is certainly our own.
    A successor needs one of several brokers only, so all must have answered.
    """

    def __init__(self, cursors: CursorLog, post: Callable[[object], None], links: Sequence[str] = ("",)) -> None:
        """``post`` gets ``Checked``, or ``Failed``, from any thread."""
        self._cursors = cursors
        self._post = post
        self.name = uuid.uuid4().hex
        """A name that no other session has."""
        self._token = f"{socket.gethostname()}/{os.getpid()}/{self.name}"
        self._serial = 0
        self._idle = True
        self.first = OwnerRecord(self._token, 1)
        """The first record of this session."""
        self.own: MessageId | None = None
        """The last record that no successor's record can precede."""
        # Pings without answer, and what was stored before them.
        self._asked: tuple[list[int], MessageId] | None = None
        self._asked_for: MessageId | None = (
            None  # the last record for which the brokers were pinged on these connections
        )
        self._next_ping = 0.0
        self._links = {link: _LinkProof() for link in links}
        self._checks: deque[Proof] = deque()  # the first one is under way
        self._thread: threading.Thread | None = None

    def proven_epoch(self, link: str = "") -> int:
        """Return the connection to a broker for which Pulsar has confirmed the ownership, 0 for none."""
        return self._links[link].proven_epoch

    @property
    def lost(self) -> tuple[str, ...]:
        """The brokers to which the connection was lost: no further connect before Pulsar confirms the ownership."""
        return tuple(link for link, proof in self._links.items() if proof.lost is not None)

    def write(self, epoch: int = 0, link: str = "", *, clean: bool = False) -> Proof:
        """Write an owner record; its ``Proof`` is the token of the ``Stored`` that follows."""
        self._serial += 1
        proof = Proof(OwnerRecord(self._token, self._serial, clean, self._idle), epoch, link)
        self._cursors.write_record(OWNER_KEY, proof.record.encode(), proof)
        return proof

    def begin(self, epochs: Mapping[str, int]) -> None:
        """Have commands sent on these connections, by broker, once the records that this writes are stored."""
        self._idle = False
        for link, proof in self._links.items():
            proof.proven_epoch = 0
            if link in epochs:
                self.write(epochs[link], link)

    def connected(self, epoch: int, link: str = "") -> None:
        """An MQTT connection was accepted: prove the ownership on it."""
        self._links[link].connected = True
        self.write(epoch, link)

    def disconnected(self, link: str = "") -> None:
        """An MQTT connection ended, without further answers, or an attempt failed."""
        proof = self._links[link]
        if proof.connected:
            proof.lost = self.write(link=link)
        proof.connected = False
        self._asked = self._asked_for = None

    def stored(self, proof: Proof) -> None:
        """Pulsar has stored an owner record: it proves the ownership once ``checked``, before the takeover at once."""
        if self.own is None:
            self._accept(proof)
            return
        self._checks.append(proof)
        if len(self._checks) == 1:
            self._check(self.own)

    def checked(self, event: Checked) -> None:
        """The records before one of ours were read. Raises FencedError if another process has owned the partition since."""
        if event.where is None:
            raise FencedError("another process owned it in between")
        self.own = event.where
        self._accept(self._checks.popleft())
        if self._checks:
            self._check(event.where)

    def _check(self, own: MessageId) -> None:
        proof = self._checks[0]

        def work() -> None:
            self._post(Checked(proof, self._cursors.proven_since(own, proof.record)))

        self._thread = start_thread("push-proof", work, lambda error: self._post(Failed(error)))

    def _accept(self, proof: Proof) -> None:
        proof.stored = True
        for link in self._links.values():
            if link.lost is proof:
                link.lost = None
        if proof.epoch and proof.record.idle is self._idle:
            self._links[proof.link].proven_epoch = proof.epoch

    def ping(self, links: Sequence[Link], now: float) -> None:
        """Ask all brokers, now and then, whether the connections are alive, to prove the last stored record."""
        if self._asked is not None:
            pairs = zip(links, self._asked[0], strict=True)
            if all(link.keepalive.answered >= number for link, number in pairs):
                self.own, self._asked = self._asked[1], None
        stored = self._cursors.last_stored
        if stored is None or stored is self._asked_for or self._asked is not None or now < self._next_ping:
            return
        self._asked = [link.ping() for link in links], stored
        self._asked_for = stored
        self._next_ping = now + _EVERY_S

    def close(self) -> None:
        """Wait for the check that is under way; before the client is closed."""
        if self._thread is not None:
            self._thread.join()
