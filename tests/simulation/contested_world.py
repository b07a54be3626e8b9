"""Two owners of a partition at once: Pulsar has granted it to a successor, and the former owner does not notice.

The former owner continues. It sends at each MQTT broker until the successor connects there, and its receipts arrive late.
Its cursors arrive when no process owns the partition: after the successor, before the next one (H23). The cursors partition
is a log, which is compacted anywhere. Reading it, owner records, terms and what is rewritten
at a takeover are the product's; only the proof by reading is not simulated.

Not simulated: requests of devices; relocation by the former owner; a device that goes to a broker where only the former
owner is connected, or, if brokers confirm, to another broker at all; an owner that dies between a will and the cursor
that follows. Not checked: what a broker alone confirmed to a device that had some of its replay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast
from unittest.mock import patch

from bridge.contract.commands import BEFORE_ALL, Command, CommandPosition
from bridge.contract.cursors import OWNER_KEY, TERM_KEY, ids_device, split_key
from bridge.contract.segments import segment_device
from bridge.push import cursor_log
from bridge.push.actions import Ack, Action, Push, StoreCursor, StoreSegment
from bridge.push.cursor import Cursor
from bridge.push.cursor_log import CursorLog, CursorRecords, CursorRewriter, CursorsAged
from bridge.push.ownership import Ownership, Proof
from bridge.push.partition import Partition
from tests.simulation.push_world import SECOND, PushWorld, WrittenAgain

__all__ = ["ContestedWorld"]

_OF_OWNER: Final = (
    "core", "partition_log", "cursor_writes", "ownership", "rewriter", "dialled", "up", "writes", "sockets", "puback_queues",
    "answers", "pulls", "copying", "next_read",
)  # fmt: skip
"""Attributes of the world that each owner has for itself."""


class Record(NamedTuple):
    """A record of the cursors partition, or a write of one. As a message it is what ``CursorLog`` reads."""

    key: str
    payload: bytes
    writer: str
    at_us: int  # when Pulsar has stored it; 0 before
    token: object = None
    number: int = 0  # of its entry

    def data(self) -> bytes:
        """As Pulsar's message."""
        return self.payload

    def publish_timestamp(self) -> int:
        """As Pulsar's message."""
        return self.at_us // 1000

    def message_id(self) -> Record:
        """As Pulsar's message."""
        return self

    def ledger_id(self) -> int:
        """As Pulsar's message id."""
        return 1

    def entry_id(self) -> int:
        """As Pulsar's message id."""
        return self.number

    def batch_index(self) -> int:
        """As Pulsar's message id."""
        return -1


@dataclass
class CursorWrites:
    """As ``Writes``: what an owner writes to the cursors partition. ``late`` has it since the owner was replaced."""

    queue: deque[Any]
    writer: str
    late: deque[Record] | None = None
    unanswered: int = 0

    def send(self, _producer: object, _topic: str, key: str, payload: bytes, token: object, **_stored: object) -> None:
        """Write a record."""
        (self.queue if self.late is None else self.late).append(Record(key, payload, self.writer, 0, token))


@lru_cache(maxsize=4096)
def _read(device: str, records: tuple[tuple[str, bytes, CommandPosition], ...], capacity: int) -> Cursor | None:
    """Return a device's cursor as the next owner reads it, which nothing changes."""
    found = CursorRecords(capacity)
    for record in records:
        found.take(*record)
    return found.whole().get(device)


class SimulatedPulsar:
    """As ``PulsarClient``: grants the partition."""

    def producer(self, _topic: str, **_more: object) -> object:
        """Return the exclusive producer."""
        return self


@dataclass
class ContestedWorld(PushWorld):
    """See the module."""

    records: list[Record] = field(default_factory=list)
    former: dict[str, Any] | None = None
    """What the former owner has of ``_OF_OWNER``, and the number of commands that it was sent."""
    acts_as_former: bool = False
    choice: int = 0
    apart: set[str] = field(default_factory=set)  # links that the owner does not reach, and a former one may
    late_steps: int = 0  # of the former owner while no process owns the partition
    connections: int = 0
    noted: dict[str, tuple[int, str]] = field(default_factory=dict)  # the last signs of life, which every owner reads
    half_open: set[str] = field(default_factory=set)  # devices that are away, which their broker has not noticed
    gone: dict[str, int] = field(default_factory=dict)  # devices with a retained will, and since when
    passed_late: set[str] = field(default_factory=set)
    """Ids of what the successor had parked when a late cursor passed it: the former owner alone knows its end, and may die."""
    replay_begun: set[str] = field(default_factory=set)
    """Ids that a broker alone confirmed, and noticed the absence when some of the replay was settled: they are not sent again."""
    stored: int = 0  # records of the cursors partition, so far
    places_of: dict[str, CommandPosition] = field(default_factory=dict)  # of the last record of each key

    # --- what may happen ---

    def fence(self, choice: int) -> None:
        """Pulsar grants the partition to another process. Some of what was written is stored, and the answer is late."""
        if self.cursor_writes.late is not None:
            return
        records = [one for one in self.writes if isinstance(one, Record)]
        for one in records[: choice % 4]:
            self._stored(one)
            self.writes[self.writes.index(one)] = one._replace(at_us=self.now)
        self.cursor_writes.late = deque(records[choice % 4 :])
        for one in self.cursor_writes.late:
            self.writes.remove(one)

    def usurp(self, choice: int) -> None:
        """The process to which Pulsar has granted the partition takes over, and the owner does not notice. An earlier former
        owner ends.
        """
        if self.cursor_writes.late is None:
            return
        self.former = {name: getattr(self, name) for name in _OF_OWNER} | {"commands": len(self.log)}
        self.writes, self.answers, self.pulls, self.copying = deque(), deque(), deque(), deque()
        self.sockets, self.puback_queues = (
            {link: deque() for link in self.links},
            {link: deque() for link in self.links},
        )
        self.up = set()
        self.choice, self.late_steps = choice, 0
        self.take_over(clean=False)
        for device, (at_us, link) in self.noted.items():
            self.core.alive(device, at_us, link)
            self.run()

    def act_as_former(self, choice: int) -> None:
        """The former owner does something."""
        if self.former is None:
            return
        with self._as_former():
            events = (
                self.arrive, self.puback, self.answer, self.store, self.store, self.pull, self.receive, self._tick,
            )  # fmt: skip
            events[choice % len(events)](choice // len(events))

    def end_former(self, _choice: int) -> None:
        """The former owner notices that it was replaced."""
        self.former = None

    def reach(self, _choice: int) -> None:
        """The owner reaches every MQTT broker."""
        self.apart.clear()

    def compact(self, choice: int) -> None:
        """Pulsar compacts the cursors partition up to some record."""
        until = len(self.records) - choice % (len(self.records) + 1)
        last = {one.key: one for one in self.records[:until]}
        kept = [one for one in self.records[:until] if last[one.key] is one and one.payload]
        self.records[:until] = kept

    def age(self, _choice: int) -> None:
        """The records of the cursors partition are old."""
        self.rewriter.begin(CursorsAged(), self.core)

    def rewrite(self, _choice: int) -> None:
        """The owner writes some of them again."""
        self.rewriter.turn(self.core, self.now / SECOND)

    def connect(self, choice: int) -> None:
        link = self._a_link(choice)
        if link in self.dialled:
            if link not in self.up and self.ownership.proven_epoch(link) == self.dialled[link]:
                for device, at_us in self.gone.items():
                    self.core.gone(device, at_us, self.now, link)
                    self.run()
                super().connect(choice)
        elif link not in self.ownership.lost and link not in self.apart:
            self._dial(link, choice)

    def move(self, choice: int) -> None:
        link = self._a_link(choice // 3)
        device = f"d{choice % 3}"
        former = self.place(device)
        if self.former is None or link not in self.former["up"]:
            super().move(choice)
        if choice % 7 and self.place(device) != former:
            self.noted[device] = self.now, self.place(device)

    def come_back(self, choice: int) -> None:
        device = f"d{choice % 3}"
        handled = self._is_at_rest() and self.place(device) in self.up  # an owner has read the will
        if device in self.half_open or (device in self.gone and not handled):
            return
        self.gone.pop(device, None)
        super().come_back(choice)
        if choice % 4:
            self.noted[device] = self.now, self.place(device)

    def _is_at_rest(self) -> bool:
        return self.cursor_writes.late is None and not self.writes and self.core.settled

    def publish(self, choice: int) -> None:
        if f"d{choice % 3}" not in self.half_open:
            super().publish(choice)

    def drop_out(self, choice: int) -> None:
        """A device goes away, and its broker takes it for connected. If the broker alone confirms it does so in vain (H26)."""
        device = f"d{choice % 3}"
        if not self.limits.answers and device not in self.away:
            self.half_open.add(device)

    def notice(self, choice: int) -> None:
        """The broker notices it. It publishes and retains the will."""
        device = f"d{choice % 3}"
        if device in self.half_open and self.place(device) in self.up and self.cursor_writes.late is None:
            link = self.place(device)
            for push in [one for one in self.sockets[link] if isinstance(one, Push) and one.command.device == device]:
                self.sockets[link].remove(push)  # it arrives before the device is back
                self.puback_queues[link].append((push.number, 0x10))
            self.half_open.discard(device)
            self.away.add(device)
            self.gone[device] = self.now
            self.core.gone(device, self.now, self.now, link)
            self.run()
            awake, cursor = self.core.devices.awake.get(device), self.core.devices.any_cursor(device)
            if (awake is not None and awake.queue) or (cursor is not None and cursor.unproven):
                self.replay_begun |= self.taken.difference(self.inbox[device])

    def crash(self, choice: int) -> None:
        self.choice, self.late_steps = choice, 1 + choice % 8
        super().crash(choice)

    # --- the owners ---

    @contextmanager
    def _as_former(self) -> Iterator[None]:
        assert self.former is not None
        mine = {name: getattr(self, name) for name in _OF_OWNER}
        vars(self).update({name: self.former[name] for name in _OF_OWNER})
        self.acts_as_former = True
        try:
            yield
        finally:
            self.former.update({name: getattr(self, name) for name in _OF_OWNER})
            vars(self).update(mine)
            self.acts_as_former = False

    def _tick(self, _choice: int) -> None:
        self.core.tick(self.now)
        self.run()

    def _dial(self, link: str, choice: int) -> None:
        """Connect under the partition's client id: the former owner's connection ends. Some of what it sent arrives."""
        if self.former is not None and link in self.former["up"]:
            with self._as_former():
                for _ in range(choice % (len(self.sockets[link]) + 1)):
                    if self.sockets[link]:
                        self._arrive_at(link, choice)
                came = [one for one in self.answers if one[2] == link]
                if link in self.up:
                    self._lose_link(link, closed=bool(choice % 2))
            self.answers.extend(came[choice % 3 :])
        self.connections += 1
        self.dialled[link] = self.connections
        self.ownership.connected(self.connections, link)

    def take_over(self, *, clean: bool) -> None:
        if self.former is not None and self.late_steps:
            for number in range(self.late_steps):
                self._write_late(self.choice + number)
            if self.choice % 2:
                self.compact(self.choice // 2 % 3)
        super().take_over(clean=clean)

    def _write_late(self, choice: int) -> None:
        """No process owns the partition: what the former owner wrote is stored, or something else of it happens."""
        assert self.former is not None
        with self._as_former():
            late = self.cursor_writes.late
            if late and choice % 5:
                record = late.popleft()
                device = split_key(record.key)[0]
                parked = self.parked_positions(device, self.cursor(device) or Cursor(0))
                self._stored(record)
                done = (self.cursor(device) or Cursor(0)).position
                self.passed_late |= {c.command_id for p, c in self.log if c is not None and p in parked and p <= done}
                self._answer_write(record)
            else:
                self.store(choice)

    def make_core(self, _horizon: CommandPosition | None) -> Partition:
        """The takeover, in the order of ``Session`` and ``Owner``."""
        name = f"owner {self.owners}"
        self.cursor_writes = CursorWrites(self.writes, name)
        self.partition_log = CursorLog(cast(Any, SimulatedPulsar()), "cursors", cast(Any, self.cursor_writes))
        self.partition_log.own()
        self.ownership = Ownership(self.partition_log, lambda _event: None, self.links)
        self.dialled: dict[str, int] = {}
        reached = [link for n, link in enumerate(self.links) if self.choice >> n & 1] or self.links[:1]
        self.apart = set(self.links).difference(reached)
        for link in reached:
            self._dial(link, self.choice)
        self._store_records()
        since_ms = (self.now - self.limits.unsure_us) // 1000
        with patch.object(cursor_log, "read_records", lambda *_which, **_how: self._messages()):
            found = self.partition_log.read(self.ownership.first, self.limits.remembered_ids, since_ms)
        self.rewriter = CursorRewriter(self.partition_log)
        last = self.log[-1][0] if self.log else BEFORE_ALL
        self.rewriter.taken_over(found, last)
        core = Partition(
            0,
            self.limits.nested(),
            found.by_device,
            None if found.clean else last,
            found.parked,
            owner=name,
            term=found.own_term,
            now_us=self.now,
            left_us=found.left_us,
            links=self.links,
        )
        self.ownership.begin(self.dialled)
        return core

    def _messages(self) -> Iterator[tuple[str, Record]]:
        yield from ((one.key, one) for one in self.records)

    def _store_records(self) -> None:
        while record := next((one for one in self.writes if isinstance(one, Record)), None):
            self.writes.remove(record)
            self._stored(record)
            self._answer_write(record)

    def _drain(self, choice: int) -> None:
        self.choice, self.late_steps = choice, 1 + choice % 8
        self.rewriter.drain()
        super()._drain(choice)
        if self.core.clean and self.cursor_writes.late is None:
            self.ownership.write(clean=True)
            self._store_records()

    def _lose_link(self, link: str, *, closed: bool) -> None:
        if link in self.dialled:
            del self.dialled[link]
            self.ownership.disconnected(link)
        super()._lose_link(link, closed=closed)

    # --- Pulsar, and the MQTT brokers ---

    def _push_arrives(self, push: Push, link: str, choice: int) -> None:
        if push.command.device not in self.half_open:
            super()._push_arrives(push, link, choice)
        elif self._is_replayed(push):
            self.puback_queues[link].append((push.number, 0x97))
        else:
            self.puback_queues[link].append((push.number, 0))
            self.taken.add(push.command.command_id)

    def receive(self, choice: int) -> None:
        if self.acts_as_former and self.former is not None:
            had = range(self.next_read, self.former["commands"])
            self.next_read = next((n for n in had if self.log[n][0] not in self.acked), len(self.log))
        super().receive(choice)

    def _do(self, action: Action) -> None:
        if isinstance(action, StoreCursor):
            self.partition_log.write_cursor(action.records, action)
        elif isinstance(action, StoreSegment):
            self.partition_log.write_record(action.key, action.payload, action)
        elif not (self.acts_as_former and isinstance(action, Ack)):  # its successor has the exclusive subscription
            super()._do(action)

    def _stored(self, action: Any) -> None:
        if not isinstance(action, Record):
            super()._stored(action)
            return
        if action.at_us:
            return
        self.stored += 1
        self.records.append(action._replace(at_us=self.now, token=None, number=self.stored))
        self.places_of[action.key] = CommandPosition(1, self.stored, -1)
        if isinstance(action.token, (StoreCursor, StoreSegment)):
            super()._stored(action.token)
        elif segment_device(action.key) is None and split_key(action.key)[0] not in (OWNER_KEY, TERM_KEY):
            super()._stored(WrittenAgain(((action.key, action.payload),)))

    def _answer_write(self, action: object) -> None:
        token = action.token if isinstance(action, Record) else action
        if isinstance(token, Proof):
            self.ownership.stored(token)
        else:
            super()._answer_write(token)

    def _kept(self, position: CommandPosition, place: CommandPosition | None) -> Command | None:
        try:
            return super()._kept(position, place)
        except AssertionError:
            if not self.acts_as_former:
                raise
            return None  # its successor has let it go

    # --- checks ---

    def cursor(self, device: str) -> Cursor | None:
        records = tuple(
            (key, payload, self.places_of[key])
            for key, payload in self.cursors.items()
            if (ids_device(key) or split_key(key)[0]) == device and payload
        )
        return _read(device, records, self.limits.remembered_ids) if records else None

    def _check_push(self, action: Push) -> None:
        if not self.acts_as_former:
            super()._check_push(action)

    def _check_stored(self) -> None:
        if self.cursor_writes.late is None:
            super()._check_stored()

    def _check_end(self, position: CommandPosition, command: Command) -> None:
        if command.command_id in self.passed_late:
            sent = command.command_id in self.inbox[command.device] or command.command_id in self.taken
            assert sent or self.receipts_of(command), f"{command.command_id} is lost"
        elif command.command_id in self.replay_begun:
            assert self.receipts_of(command), f"{command.command_id} is lost"
        else:
            super()._check_end(position, command)

    def finish(self) -> None:
        """One owner is left."""
        if self.cursor_writes.late is not None:
            self.usurp(3)
        self.former = None
        self.apart.clear()
        while len(self.up) < len(self.links):
            self.connect_all()
            self.store(0)
        for number in range(3):
            self.notice(number)
        self.gone.clear()
        super().finish()
