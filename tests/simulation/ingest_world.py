"""A world for the decisions of ingest: one session at an MQTT broker, two partitions in Pulsar, and crashes anywhere.

The worker, its acknowledgements, its producer queues and its filters are the product's; link and intake are simulated.

Not simulated, because no order of steps prevents it: the broker loses the session, and ingest dies after CONNECT before it
has stored that the new session may lack its filters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, cast
from unittest.mock import patch

from bridge.ingest import worker as product
from bridge.ingest.session_filters import SessionFilters
from bridge.ingest.worker import IngestWorker
from bridge.mqtt.types import Connected, Disconnected, Subscription
from bridge.pulsar.acks import Entry, ProducerQueue, Verdict
from bridge.settings import Settings

__all__ = ["EVENTS", "RARE", "IngestWorld"]

EVENTS: Final = (
    "publish", "publish", "deliver", "deliver", "to_broker", "to_broker", "to_client", "to_client", "turn", "turn", "store",
    "store", "receipt", "receipt", "reopen", "connect", "work", "work", "pass_time", "remember", "cut", "lose_session",
    "fail", "retire", "crash",
)  # fmt: skip
RARE: Final = frozenset(["cut", "lose_session", "crash", "pass_time"])
_FILTERS: Final = ("d0/#", "d1/#", "d2/#")
_PARTITIONS: Final = 2
_WINDOW: Final = 8
_SETTINGS: Final = Settings.model_validate({"ingest": {"limits": {"in_flight": _WINDOW}}})


class Published(NamedTuple):
    """A message of device ``device``, its number among all, and its packet identifier on one connection."""

    device: int
    number: int
    mid: int = 0


class SimulatedLink:
    """What the worker calls of a link; each packet goes to the broker in order, or is lost with the connection."""

    def __init__(self, settings: Any, _handler: Any, *, receive_maximum: int, **_more: Any) -> None:
        self.client_id, self.receive_maximum = settings.client_id, receive_maximum
        self.epoch, self.connected, self.paused, self.dialling = 0, False, False, False
        self.sent: deque[tuple[str, Any]] = deque()

    def wake(self) -> None:
        """Nothing waits."""

    def subscribe(self, subscriptions: Sequence[Subscription]) -> None:
        """As ``Link.subscribe``."""
        self.sent.append(("SUBSCRIBE", [one.filter for one in subscriptions]))

    def unsubscribe(self, filters: Sequence[str]) -> None:
        """As ``Link.unsubscribe``."""
        self.sent.append(("UNSUBSCRIBE", list(filters)))

    def acknowledge(self, mids: Sequence[int], epoch: int) -> bool:
        """As ``Link.acknowledge``."""
        if not self.connected or epoch != self.epoch:
            return False
        self.sent.extend(("PUBACK", mid) for mid in mids)
        return True

    def disconnect(self) -> None:
        """Unacknowledged messages come again on the next connection."""
        self.connected = self.dialling = False


class SimulatedReading(Entry):
    """A message on its way to Pulsar."""

    __slots__ = ("arrived", "published")

    def __init__(self, epoch: int, arrived: float, published: Published) -> None:
        super().__init__(epoch, published.mid)
        self.arrived, self.published = arrived, published


@dataclass(eq=False)
class Flow:
    """A partition: the product's queue, batches under way in Pulsar, and what Pulsar has stored."""

    queue: ProducerQueue = field(default_factory=lambda: ProducerQueue(20))
    sent: deque[tuple[int, list[Any]]] = field(default_factory=deque)
    failed: int = 0
    """The last generation that failed: Pulsar stores nothing more of it."""


class SimulatedIntake:
    """What the worker calls of an intake. As ``PartitionProducers`` it sends the batches that the queues decide on."""

    def __init__(self, world: IngestWorld) -> None:
        self.world, self.in_flight = world, 0
        self.flows = [Flow() for _ in range(_PARTITIONS)]
        self.receipts: deque[tuple[Flow, int, Any, bool]] = deque()
        self.metrics = SimpleNamespace(client_address="")
        for flow in self.flows:
            flow.queue.reopened()

    @property
    def room(self) -> int:
        """As ``Intake.room``."""
        return max(1, 2 * _WINDOW - self.in_flight)

    @property
    def full(self) -> bool:
        """As ``Intake.full``."""
        return self.in_flight >= 2 * _WINDOW

    @property
    def has_room(self) -> bool:
        """As ``Intake.has_room``."""
        return self.in_flight < _WINDOW

    def watch(self, _now: float, _oldest: float | None) -> None:
        """Nothing is reported."""

    def take_all(self, messages: Sequence[Published], epoch: int, now: float) -> list[Entry]:
        """As ``Intake.take_all``: queue the messages, each in the partition of its device."""
        readings: list[Entry] = []
        for message in messages:
            reading = SimulatedReading(epoch, now, message)
            self.flows[message.device % _PARTITIONS].queue.put(reading)
            readings.append(reading)
        self.in_flight += len(readings)
        return readings

    def turn(self, _now: float) -> None:
        """Take what Pulsar has answered, then send."""
        while self.world.answered:
            flow, generation, marked, good = self.world.answered.popleft()
            if good:
                self.in_flight -= len(flow.queue.receipt(generation, marked))
            elif flow.queue.failed(generation, refused=False) is not Verdict.LATE:
                self.world.end_producer(flow)
        for flow in self.flows:
            batch = flow.queue.to_send()
            if batch and flow.failed != flow.queue.generation:
                flow.sent.append((flow.queue.generation, batch))


class IngestWorld:
    """See the module. ``stored`` is Pulsar, by partition; ``queued`` and ``unacknowledged`` are the broker's session."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.published: list[Published] = []
        self.stored: list[list[Published]] = [[] for _ in range(_PARTITIONS)]
        self.stored_numbers: set[int] = set()
        self.session = False
        self.filters: set[str] = set()
        self.queued: deque[Published] = deque()
        self.unacknowledged: dict[int, Published] = {}
        self.kept: set[int] = set()
        """Numbers of the messages that the broker's session got and has not lost."""
        self.received: deque[tuple[str, Any]] = deque()
        self.attached = False  # the broker has taken CONNECT of the open connection
        self.delivered_epoch = 0
        self.next_mid = 1
        self.remembered: dict[str, int] | None = None
        self.remembering: deque[dict[str, int]] = deque()
        self.answering: deque[tuple[Flow, int, Any, bool]] = deque()
        self.answered: deque[tuple[Flow, int, Any, bool]] = deque()
        self.start()

    def start(self) -> None:
        """A process starts."""
        filters = SessionFilters(
            tuple(map(Subscription, _FILTERS)), self.remembered, optional=None, remember=self._remember
        )
        part = cast(Any, SimpleNamespace(waits=lambda _why: None, ready=lambda: None, turned=lambda _now: None))
        with patch.object(product, "Link", SimulatedLink):
            self.worker = IngestWorker(
                _SETTINGS,
                lambda **_settings: cast(Any, SimulatedIntake(self)),
                name="simulated",
                part=part,
                filters=filters,
            )
        self.link = cast(SimulatedLink, self.worker.link)
        self.intake = cast(SimulatedIntake, self.worker.intake)

    def _remember(self, filters: dict[str, int]) -> None:
        self.remembering.append(dict(filters))

    # --- what may happen, in any order ---

    def publish(self, choice: int) -> None:
        """A device publishes."""
        message = Published(choice % len(_FILTERS), len(self.published))
        self.published.append(message)
        if self.session and _FILTERS[message.device] in self.filters:
            self.queued.append(message)
            self.kept.add(message.number)

    def connect(self, _choice: int) -> None:
        """The link sends CONNECT."""
        if not self.link.connected and not self.link.dialling:
            self.link.dialling = True
            self.link.sent.clear()
            self.received.clear()
            self.attached = False
            self.link.sent.append(("CONNECT", None))

    def to_broker(self, _choice: int) -> None:
        """The next packet reaches the broker."""
        if not self.link.sent:
            return
        kind, content = self.link.sent.popleft()
        if kind == "CONNECT":
            self.attached = True
            self.received.append(("CONNACK", self.session))
            self.session = True
            self.queued.extendleft(reversed(self.unacknowledged.values()))
            self.unacknowledged.clear()
        elif kind == "SUBSCRIBE":
            self.filters.update(content)
            self.received.append(("SUBACK", [1] * len(content)))
        elif kind == "UNSUBSCRIBE":
            self.filters.difference_update(content)
        else:
            assert content == next(iter(self.unacknowledged), None), "PUBACKs are not in the order of the messages"
            number = self.unacknowledged.pop(content).number
            assert number in self.stored_numbers, "acknowledged before Pulsar has stored it"

    def deliver(self, choice: int) -> None:
        """The broker sends messages, within the Receive Maximum."""
        for _ in range(1 + choice % 4):
            if self.attached and self.queued and len(self.unacknowledged) < _WINDOW:
                message = self.queued.popleft()._replace(mid=self.next_mid)
                self.next_mid = self.next_mid % 20 + 1  # they come again soon, for other messages
                assert message.mid not in self.unacknowledged
                self.unacknowledged[message.mid] = message
                self.received.append(("PUBLISH", message))

    def to_client(self, choice: int) -> None:
        """The next packets reach ingest, those of messages in one read."""
        if not self.received or (self.link.connected and self.link.paused):
            return
        kind, content = self.received.popleft()
        if kind == "CONNACK":
            self.link.epoch += 1
            self.link.connected, self.link.dialling = True, False
            self.worker.on_connected(Connected(self.link.epoch, content))
        elif kind == "SUBACK":
            self.worker.on_subscribed(content)
        else:
            messages = [content]
            while len(messages) <= choice % 4 and self.received and self.received[0][0] == "PUBLISH":
                messages.append(self.received.popleft()[1])
            self.worker.on_messages(cast(Any, messages))

    def turn(self, _choice: int) -> None:
        """The loop's turn ends."""
        self.worker.on_turn(self.now)
        if not self.link.connected and not self.link.dialling:
            self._close()

    def work(self, choice: int) -> None:
        """Everything moves on a little."""
        self.connect(choice)
        self.reopen(choice)
        for _ in range(choice % 5):
            for event in (self.to_broker, self.deliver, self.to_client, self.turn, self.store, self.receipt):
                event(choice)

    def cut(self, choice: int) -> None:
        """The connection ends; the broker has read some of what was sent."""
        if not self.link.connected and not self.link.dialling:
            return
        for _ in range(choice % (len(self.link.sent) + 1)):
            self.to_broker(0)
        unanswered = not self.link.connected
        epoch = self.link.epoch if self.link.connected else 0
        self._close()
        self.worker.on_disconnected(Disconnected(epoch, "cut", closed_by_peer=True, unanswered=unanswered))

    def _close(self) -> None:
        self.link.connected = self.link.dialling = self.link.paused = self.attached = False
        self.link.sent.clear()
        self.received.clear()

    def lose_session(self, choice: int) -> None:
        """The broker restarts without the session: its messages are lost, and later ones until the next SUBSCRIBE."""
        self.cut(choice)
        self.session = False
        self.filters.clear()
        self.kept.difference_update(one.number for one in (*self.queued, *self.unacknowledged.values()))
        self.queued.clear()
        self.unacknowledged.clear()

    def store(self, choice: int) -> None:
        """Pulsar stores the oldest batch of a partition; its receipt is on its way."""
        number = choice % _PARTITIONS
        flow = self.intake.flows[number]
        if flow.sent:
            generation, batch = flow.sent.popleft()
            self._write(number, batch)
            self.answering.append((flow, generation, batch[-1], True))

    def _write(self, number: int, batch: Sequence[Any]) -> None:
        for reading in batch:
            self.stored[number].append(reading.published)
            self.stored_numbers.add(reading.published.number)

    def receipt(self, choice: int) -> None:
        """An answer of Pulsar arrives; those of one partition keep their order."""
        if self.answering:
            flow = self.answering[choice % len(self.answering)][0]
            first = next(one for one in self.answering if one[0] is flow)
            self.answering.remove(first)
            self.answered.append(first)

    def fail(self, choice: int) -> None:
        """A producer fails: of what it was given a part is stored, which no receipt says."""
        number = choice % _PARTITIONS
        flow = self.intake.flows[number]
        if flow.sent:
            generation, batch = flow.sent[0]
            self._write(number, batch[: choice // 2 % (len(batch) + 1)])
            flow.sent.clear()
            flow.failed = generation
            self.answering.append((flow, generation, batch[-1], False))

    def end_producer(self, flow: Flow) -> None:
        """What a retired producer was given and Pulsar has not stored is not stored any more."""
        flow.sent.clear()

    def retire(self, choice: int) -> None:
        """The owner gives a producer up; receipts of it may still come."""
        flow = self.intake.flows[choice % _PARTITIONS]
        if flow.queue.failed(flow.queue.generation, refused=False) is not Verdict.LATE:
            self.end_producer(flow)

    def reopen(self, choice: int) -> None:
        """A successor is open."""
        flow = self.intake.flows[choice % _PARTITIONS]
        if not flow.queue.open:
            flow.queue.reopened()

    def pass_time(self, choice: int) -> None:
        """Time passes."""
        self.now += choice % 10

    def remember(self, _choice: int) -> None:
        """Pulsar has stored the filters of the session."""
        if self.remembering:
            self.remembered = self.remembering.popleft()

    def crash(self, choice: int) -> None:
        """The process dies and another one starts. See the module for what is stored before."""
        self.cut(choice)
        while self.remembering:
            self.remember(0)
        for number, flow in enumerate(self.intake.flows):
            for _, batch in list(flow.sent)[: choice % 3]:
                self._write(number, batch)
        self.answering.clear()
        self.answered.clear()
        self.start()

    # --- the end ---

    def finish(self) -> None:
        """Let everything work. What the session got is stored, in order for each device, and new messages come."""
        self._settle()
        for device in range(len(_FILTERS)):
            self.publish(device)
        self._settle()
        assert {one.number for one in self.published[-len(_FILTERS) :]} <= self.stored_numbers, (
            "ingest is connected and gets no messages"
        )
        assert not self.queued, "messages wait at the broker"
        assert not self.unacknowledged, "messages are stored and not acknowledged"
        missing = self.kept - self.stored_numbers
        assert not missing, f"the session got {sorted(missing)}, and Pulsar lacks them"
        for stored in self.stored:
            for device in range(len(_FILTERS)):
                first = list(dict.fromkeys(one.number for one in stored if one.device == device))
                assert first == sorted(first), f"messages of device {device} are out of order"

    def _settle(self) -> None:
        for _ in range(60 + len(self.published)):
            for number in range(_PARTITIONS):
                self.reopen(number)
                self.store(number)
            for event in (self.connect, self.to_broker, self.deliver, self.to_client, self.receipt, self.turn):
                event(3)
            while self.link.sent:
                self.to_broker(0)
