"""The MQTT connections of a partition, one to each broker, and the events for the partition's thread."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog

from bridge.health import Part
from bridge.mqtt.turns import turn_all
from bridge.poller import Poller
from bridge.pulsar.batch_writer import BatchAnswered
from bridge.pulsar.sending import Failed, Stored
from bridge.push.broker_link import BrokerLink
from bridge.push.brokers import brokers_of
from bridge.push.metrics import PartitionMetrics
from bridge.push.ownership import Checked, Ownership, Proof
from bridge.push.partition_log import PartitionLog
from bridge.settings import Settings

if TYPE_CHECKING:
    from bridge.push.owner import Owner

__all__ = ["Connection"]

log = structlog.get_logger("push")

_GATHER_S: Final = 0.005
"""The answers of Pulsar are handled together: unlike commands, cursors and receipts are not urgent."""
_OTHERS_S: Final = 2.0  # so long a takeover waits for further brokers once one has accepted us
_CHECK_S: Final = 10.0
"""While a broker is away, the ownership is proven by a read of the cursors partition this often."""


class Connection:
    """The connections of one session. All methods but ``post`` and ``wake`` are called on the partition's thread.

    With several brokers none delays the devices of another: the links wait together, dial in threads, and prove the
    ownership without a pause of the others.
    """

    def __init__(
        self, settings: Settings, partition: int, metrics: PartitionMetrics, part: Part, stopping: threading.Event
    ) -> None:
        self.metrics = metrics
        self._part = part
        self._stopping = stopping
        self._inbox: deque[object] = deque()
        self.owner: Owner | None = None
        """Gets what happens, once the partition is ours; a standby has none."""
        self.log = PartitionLog(settings.pulsar, partition, self.post)
        self.brokers = brokers_of(settings)
        self._poller = Poller()  # which the links share
        self.ownership = Ownership(self.log.cursors, self.post, tuple(self.brokers.settings))
        self._next_check = 0.0
        self._accepted_at: float | None = None
        self.links = {
            name: BrokerLink(name, settings.model_copy(update={"mqtt": mqtt}), self, self._poller)
            for name, mqtt in self.brokers.settings.items()
        }
        """By broker."""

    @property
    def first(self) -> str:
        """The name of the first broker."""
        return next(iter(self.brokers.settings))

    # --- from any thread ---

    def post(self, event: object) -> None:
        """Hand an event to the partition's thread."""
        self._inbox.append(event)
        proof = isinstance(event, Stored) and isinstance(event.token, Proof)
        if proof or not isinstance(event, (Stored, BatchAnswered)):
            self.wake()

    def wake(self) -> None:
        """End the present wait."""
        self._poller.wake()

    # --- turns ---

    @property
    def connected(self) -> bool:
        """Whether a link is up and the ownership is not in doubt."""
        return not self.ownership.lost and any(one.link.connected for one in self.links.values())

    @property
    def accepted(self) -> bool:
        """Whether a former owner cannot send any more: each broker has accepted us, which ended its connection there. Brokers
        that are away, or take long, do not count if one has accepted us: our connection precedes our first command there.
        """
        now = time.monotonic()
        if not any(one.proven for one in self.links.values()):
            return False
        self._accepted_at = now if self._accepted_at is None else self._accepted_at
        late = now - self._accepted_at >= _OTHERS_S
        return all(one.proven or one.tried or late for one in self.links.values())

    @property
    def denied(self) -> bool:
        """Whether each broker has refused us."""
        return all(one.denied for one in self.links.values())

    def turn(self, most_s: float) -> None:
        """Handle what comes, for ``most_s`` seconds at most. Raises FencedError."""
        self.drain_turn(most_s)
        now = time.monotonic()
        links = [one.link for one in self.links.values() if one.link.connected]
        if len(links) == len(self.links):
            self.ownership.ping(links, now)
        elif links and self.ownership.own is not None and now >= self._next_check:
            self._next_check = now + _CHECK_S
            self.ownership.write()

    def drain_turn(self, most_s: float = 0.2) -> None:
        """Handle what comes at the end of a session, when no proof is needed for long."""
        busy = self.log.writing or (self.owner is not None and self.owner.busy)
        lost = self.ownership.lost
        links = [one.link for name, one in self.links.items() if name not in lost]
        turn_all(links, self._poller, min(most_s, _GATHER_S) if busy else most_s, self.on_turn)

    def turns_until(self, done: Callable[[], bool]) -> bool:
        """Handle what comes until ``done`` returns True. Returns False when the process stops."""
        while not done():
            if self._stopping.is_set():
                return False
            self.turn(0.2)
        return True

    def begin(self) -> None:
        """Have commands sent once the records are stored that this writes."""
        self.ownership.begin({name: one.link.epoch for name, one in self.links.items() if one.link.connected})

    def show_link(self, link: BrokerLink) -> None:
        """Show whether a link is up, and the process ready if all are."""
        self.metrics.link_up(self.brokers.shown(link.name), link.up)
        away = [one for one in self.links.values() if not one.up]
        if away:
            self._part.waits("; ".join(f"MQTT is away{one.at}: {one.why}" for one in away))
        else:
            self._part.ready()

    def close(self) -> None:
        """Close the links and everything of Pulsar."""
        for one in self.links.values():
            one.link.disconnect()
            self.metrics.link_up(self.brokers.shown(one.name), False)
        self._poller.close()
        self.ownership.close()
        self.log.close()

    def on_turn(self, now: float) -> None:
        """Triggered at the end of each turn: handle what was posted."""
        self._part.turned(now)
        while self._inbox:
            self._handle(self._inbox.popleft())
        for one in self.links.values():
            one.inbound.acknowledge()
        if self.owner is not None:
            self.owner.turn(now)

    def _handle(self, event: object) -> None:
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Stored):
            self.log.writes.unanswered -= 1
            if isinstance(event.token, Proof):
                self.ownership.stored(event.token)
                self._up(event.token)
                return
        if isinstance(event, Checked):
            self.ownership.checked(event)
            self._up(event.proof)
        elif self.owner is not None:
            self.owner.receive(event)

    def _up(self, proof: Proof) -> None:
        if proof.stored and proof.epoch:
            self.links[proof.link].up_if_ready()
