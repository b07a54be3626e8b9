"""A world for the push tier's core: a log, a broker and Pulsar that stores each topic in order, and crashes anywhere.

It checks at each step what must hold for any order of events; ``finish`` lets everything work again and checks
what must hold in the end. Nothing here is shared with the core but the actions.
"""

from __future__ import annotations

from array import array
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from bridge.contract import DELIVERIES, FAILURES, REMARKS, Receipt
from bridge.contract.commands import BEFORE_ALL, Command, CommandPosition
from bridge.contract.cursors import ids_device, ids_key
from bridge.contract.segments import GONE, ParkedId, read_segment, segment_device
from bridge.push.actions import (
    Ack,
    Action,
    AnswerRequest,
    Copy,
    DeadLetter,
    DropRequest,
    FindCommands,
    Forget,
    Pull,
    Push,
    ResumeRequest,
    StoreCursor,
    StoreReceipt,
    StoreSegment,
)
from bridge.push.cursor import Cursor
from bridge.push.cursor_log import CursorRecords
from bridge.push.flights import CLOSES
from bridge.push.partition import Partition
from bridge.push.segments import Parked
from bridge.push.states import Mode
from tests.support.push_limits import Limits

SECOND = 1_000_000


def records_of(stored: Mapping[str, bytes], capacity: int = 256) -> CursorRecords:
    """Return stored cursors and ids, as the next owner reads them."""
    found = CursorRecords(capacity)
    for key, payload in stored.items():
        if segment_device(key) is None:
            found.take(key, payload)
    found.whole()
    return found


def cursors_of(stored: Mapping[str, bytes], capacity: int = 256) -> Mapping[str, Cursor]:
    """Return the cursors among stored records, as the next owner reads them."""
    return records_of(stored, capacity).by_device


@dataclass
class Resumed:
    """An answer to a request, as the device got it, and how many commands it had had until then."""

    after: CommandPosition
    first: CommandPosition
    had: int


@dataclass
class WrittenAgain:
    """A cursor that is rewritten because it is old, or ids that are removed; no device waits for it."""

    records: tuple[tuple[str, bytes], ...]


@lru_cache(maxsize=4096)
def _cursor(payload: bytes, ids: bytes, capacity: int) -> Cursor:
    """Return a stored cursor, which nothing changes."""
    cursor = Cursor.decode(payload, capacity)
    if ids and capacity:
        cursor.with_ids(ids)
    return cursor


@lru_cache(maxsize=4096)
def _segment(payload: bytes) -> list[ParkedId]:
    """Return the ids of a stored segment, which nothing changes."""
    return read_segment(payload).ids


def _topic(action: Action | WrittenAgain) -> str:
    """Return the topic that a write goes to."""
    if isinstance(action, StoreReceipt):
        return "receipts"
    return "dead letters" if isinstance(action, DeadLetter) else "cursors"


@dataclass
class PushWorld:
    limits: Limits
    poison_every: int = 0  # the broker closes the connection at each command of such a number; 0: at none
    links: tuple[str, ...] = ("",)  # the MQTT brokers; devices move between several
    refusals: bool = True  # and what devices do not get; with a device window above 1 those are overtaken
    now: int = 1_000 * SECOND
    log: list[tuple[CommandPosition, Command | None]] = field(default_factory=list)
    acked: set[CommandPosition] = field(default_factory=set)
    settled_acks: set[CommandPosition] = field(default_factory=set)
    cursors: dict[str, bytes] = field(default_factory=dict)
    receipts: dict[str, list[Receipt]] = field(default_factory=lambda: defaultdict(list))
    dead: set[CommandPosition] = field(default_factory=set)
    dead_ids: set[str] = field(default_factory=set)
    inbox: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    writes: deque[Action | WrittenAgain] = field(default_factory=deque)
    sockets: dict[str, deque[Push | AnswerRequest]] = field(default_factory=dict)  # by link, as are the PUBACKs
    puback_queues: dict[str, deque[tuple[int | AnswerRequest, int]]] = field(default_factory=dict)
    answers: deque[tuple[CommandPosition, bool, str]] = field(default_factory=deque)  # with the link that they come by
    places: dict[str, str] = field(default_factory=dict)  # the link of each device
    wills: deque[tuple[str, str]] = field(default_factory=deque)  # devices, and the links that they left
    left: dict[tuple[str, str], list[Command]] = field(
        default_factory=lambda: defaultdict(list)
    )  # in sessions, by link
    by_sessions: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Which of a device's inbox came from a session that it had left."""
    births: set[tuple[str, str]] = field(default_factory=set)  # devices, and links that retain their birth message
    answered: set[str] = field(default_factory=set)
    segments: dict[str, bytes] = field(default_factory=dict)
    orphans: list[str] = field(default_factory=list)  # keys of ids whose device has no cursor
    pulls: deque[tuple[str, int, CommandPosition, CommandPosition | None]] = field(default_factory=deque)
    copying: deque[Copy] = field(default_factory=deque)
    copies: list[Command] = field(default_factory=list)
    held_from: CommandPosition = BEFORE_ALL  # before it Pulsar has trimmed the commands
    copies_from: CommandPosition = BEFORE_ALL
    away: set[str] = field(default_factory=set)
    signs: deque[tuple[str, int, str]] = field(default_factory=deque)  # noted by ingest, not read by push yet
    taken: set[str] = field(default_factory=set)  # ids that a broker took which their device had left
    perfect: bool = False  # everything works: nothing is lost or refused any more
    requests: list[ResumeRequest] = field(default_factory=list)  # of devices, not acknowledged
    asked: int = 0
    finds: deque[FindCommands] = field(default_factory=deque)
    unanswered: list[AnswerRequest] = field(default_factory=list)  # no PUBACK has come
    resumed: dict[str, Resumed] = field(default_factory=dict)  # the last answer that a device got
    left_out: dict[str, CommandPosition] = field(default_factory=dict)  # answers left out what is before it
    answers_got: set[tuple[int, int]] = field(default_factory=set)  # owner and token
    forgotten: bool = False  # Pulsar has lost the cursors, and not all of them are stored again
    trimmed: CommandPosition = BEFORE_ALL  # what is before is not found any more
    up: set[str] = field(default_factory=set)  # links that are connected
    owners: int = 0
    closes: int = 0  # of connections, for no command
    next_read: int = 0

    def __post_init__(self) -> None:
        self.sockets = {link: deque() for link in self.links}
        self.puback_queues = {link: deque() for link in self.links}
        self.take_over(clean=True)

    def place(self, device: str) -> str:
        """The link of a device; at first they are spread."""
        return self.places.setdefault(device, self.links[int(device[1:]) % len(self.links)])

    def _a_link(self, choice: int) -> str:
        return self.links[choice % len(self.links)]

    # --- what may happen, in any order ---

    def write_command(self, choice: int) -> None:
        """A command of one of three devices is written; some expire soon, some repeat an earlier id."""
        device = f"d{choice % 3}"
        ids = [c.command_id for _, c in self.log if c is not None and c.device == device]
        if choice % 7 == 0 and ids:
            command_id = ids[-1 - (choice // 7) % min(len(ids), 5)]
        else:
            command_id = f"{device}-{len(self.log)}"
        known = [c for _, c in self.log if c is not None and c.command_id == command_id]
        expires = self.now // 1000 + 1500 if choice % 5 == 0 else 0
        payload, named = b"x" * (1 + choice % 3), self._a_link(choice // 5) if choice % 4 == 0 else ""
        command = known[0] if known else Command(command_id, device, "t", payload, expires_at_ms=expires, link=named)
        self.log.append((CommandPosition(len(self.log) // 4, len(self.log) % 4, -1), command))

    def write_bad(self, _choice: int) -> None:
        self.log.append((CommandPosition(len(self.log) // 4, len(self.log) % 4, -1), None))

    def receive(self, _choice: int) -> None:
        """Pulsar hands over the next message that is not acknowledged."""
        full = self.core.commands.pending_bytes >= self.limits.pending_bytes
        if full or self.core.commands.pending >= self.limits.pending:
            return
        while self.next_read < len(self.log):
            position, command = self.log[self.next_read]
            self.next_read += 1
            if position in self.acked:
                continue
            if command is None:
                self.core.arrived_invalid(position, "bad", Command("", "", "", b""), 2)
            else:
                self.core.arrived(position, command, self.now)
            self.run()
            return

    def read_again(self, choice: int) -> None:
        """The consumer reconnects: all that is not acknowledged comes again, and some acks were lost."""
        self._lose_acks(choice)
        self.next_read = 0

    def arrive(self, choice: int) -> None:
        """The first packet on a socket reaches its broker, which takes or refuses it."""
        links = [link for link in self.links if self.sockets[link]]
        if not links:
            return
        self._arrive_at(links[choice % len(links)], choice)

    def _arrive_at(self, link: str, choice: int) -> None:
        push = self.sockets[link].popleft()
        self.now += 1  # so that a sign of life is not of the same time
        if isinstance(push, AnswerRequest):
            self._answer_arrives(push, link)
        else:
            self._push_arrives(push, link, choice)

    def _push_arrives(self, push: Push, link: str, choice: int) -> None:
        if self.poisonous(push.command) and not self.perfect:
            self._close_link(link)
            return
        if self.place(push.command.device) != link:
            self._arrives_elsewhere(push, choice)
            return
        if self.refusals and self._fails(push, choice):
            return
        self._is_received(push, link, choice)

    def _is_received(self, push: Push, link: str, choice: int) -> None:
        """The device gets it, and perhaps answers."""
        inbox = self.inbox[push.command.device]
        assert not self._is_unmarked(push), f"{push.command.command_id} came twice and is not marked"
        inbox.append(push.command.command_id)
        self.puback_queues[link].append((push.number, 0))
        if self.limits.answers and (choice % 3 or self.perfect):
            self.answers.append((push.position, choice % 11 == 0 and not self.perfect, link))

    def _is_unmarked(self, push: Push) -> bool:
        return push.command.command_id in self.inbox[push.command.device] and not push.repeat

    def _arrives_elsewhere(self, push: Push, choice: int) -> None:
        """The broker reports that no client is subscribed, or has a session that the device left, and takes it for that (H26).
        What is replayed counts as delivered then if the broker alone confirms.
        """
        vain = choice % 2 and (self.limits.answers or not self._is_replayed(push))
        self.puback_queues[push.link].append((push.number, 0 if vain else 0x10))
        if vain and not self.limits.answers:  # else it expires there
            self.left[push.command.device, push.link].append(push.command)
            self.taken.add(push.command.command_id)

    def _is_replayed(self, push: Push) -> bool:
        device = self.core.devices.awake.get(push.command.device)
        return push.position in self.core.commands.pulled or (device is not None and device.mode is not Mode.LIVE)

    def poisonous(self, command: Command) -> bool:
        return bool(self.poison_every) and int(command.command_id.split("-")[1]) % self.poison_every == 0

    def _fails(self, push: Push, choice: int) -> bool:
        """Whether the broker refuses it, or takes it and no device is there (H26)."""
        device, number, pubacks = push.command.device, push.number, self.puback_queues[push.link]
        if choice % 4 == 0:
            pubacks.append((number, 0x97 if choice % 8 else 0x10))
        elif device in self.away and not (self.limits.answers and choice % 2):
            pubacks.append((number, 0x10))
        elif self.limits.answers and not self.perfect and (choice % 5 == 0 or device in self.away):
            pubacks.append((number, 0))
        else:
            return False
        return True

    def answer(self, choice: int) -> None:
        """A device's answer reaches us, perhaps before the PUBACK, perhaps late; some come twice."""
        if not self.answers:
            return
        self.answers.rotate(-(choice % len(self.answers)))
        position, failed, link = self.answers.popleft()
        if choice % 4 == 0 and not self.perfect:
            self.answers.append((position, failed, link))
        if not failed:
            self.answered.add(next(c.command_id for p, c in self.log if p == position and c is not None))
        self.core.answered(position, b"done", self.now, link, failed=failed)
        self.run()

    def leave(self, choice: int) -> None:
        """A device goes away; its will comes, or does not, or comes late."""
        device = f"d{choice % 3}"
        self.away.add(device)
        if choice % 2:
            self.core.gone(device, self.now - choice % 5 * SECOND, self.now, self.place(device))
            self.run()

    def come_back(self, choice: int) -> None:
        """A device is back, and says so, or not."""
        device = f"d{choice % 3}"
        self.away.discard(device)
        if choice % 4:
            self.core.alive(device, self.now, self.place(device))
            self.run()

    def move(self, choice: int) -> None:
        """A device goes to another broker, perhaps in the middle of a command, and says so, or not. Its will comes later, or
        never; the broker that it leaves may retain its birth message.
        """
        device = f"d{choice % 3}"
        former = self.place(device)
        place = self.places[device] = self._a_link(choice // 3)
        if place == former:
            return
        self.away.discard(device)
        if choice % 2:
            self.wills.append((device, former))
        if choice % 5 == 0:
            self.births.add((device, former))
        # What the broker got before reached no client: it handles that before the device is subscribed again.
        stale = [one for one in self.sockets[place] if isinstance(one, Push) and one.command.device == device]
        for push in stale:
            self.sockets[place].remove(push)
            self._arrives_elsewhere(push, choice)
        # The session that it left there gives it what has not expired. What it has had is old, as the positions show, unless
        # it has asked for that again since.
        had = self.inbox[device]
        since = had[self.resumed[device].had :] if device in self.resumed else had
        left = [one for one in self.left.pop((device, place), ()) if not one.expired(self.now)]
        given = [one for one in dict.fromkeys(one.command_id for one in left) if one not in since]
        self.by_sessions[device].update(range(len(had), len(had) + len(given)))
        had += given
        if choice % 7:
            self.core.alive(device, self.now, place)
            self.run()
        elif choice % 3:
            self.signs.append((device, self.now, place))

    def will(self, choice: int) -> None:
        """The will of a device comes from a broker that it has left."""
        if self.wills:
            self.wills.rotate(-(choice % len(self.wills)))
            device, link = self.wills.popleft()
            if link != self.place(device):
                self.core.gone(device, self.now, self.now, link)
                self.run()

    def publish(self, choice: int) -> None:
        """A device that is there publishes something, and ingest notes it."""
        device = f"d{choice % 3}"
        if device not in self.away:
            self.signs.append((device, self.now, self.place(device)))

    def hear(self, choice: int) -> None:
        """Push reads a note, perhaps long after the device has gone."""
        if self.signs:
            self.signs.rotate(-(choice % len(self.signs)))
            device, at_us, link = self.signs.popleft()
            self.core.alive(device, at_us, link)
            self.run()

    def pull(self, choice: int) -> None:
        """A parked command was read again: those of one device in their order, and of others whenever they come."""
        if self.pulls:
            of_one = dict.fromkeys((device, turn) for device, turn, _, _ in self.pulls)
            chosen = list(of_one)[choice % len(of_one)]
            device, turn, position, place = next(one for one in self.pulls if one[:2] == chosen)
            self.pulls.remove((device, turn, position, place))
            command = self._kept(position, place) if self.core.replay.wants(device, turn) else None
            self.core.pulled(device, turn, position, command, self.now)
            self.run()

    def _kept(self, position: CommandPosition, place: CommandPosition | None) -> Command | None:
        if place == GONE:
            repeated = next(c for p, c in self.log if p == position)
            assert self._has_final_receipt(repeated, position), "a command that is wanted was not moved"
            return None
        if place is not None:
            assert place >= self.copies_from, "a copy that is wanted was let go of"
            command: Command | None = self.copies[place.entry]
        else:
            command = next(c for p, c in self.log if p == position)
            held = position >= self.held_from or position not in self.acked  # by one subscription or the other
            if not held and command is not None and command.expired(self.now):
                assert self.receipts[command.command_id], "a command that is wanted was let go of"
                return None  # it had expired before; its acknowledgement was lost, and it was parked
            if not held and self._has_final_receipt(command, position):
                return None  # its acknowledgement was lost, and it was parked all the same
            assert held, "a command that is wanted was let go of"
        assert command is not None
        return command

    def _has_final_receipt(self, command: Command | None, position: CommandPosition) -> bool:
        receipts = [] if command is None else self.receipts[command.command_id]
        return any(one.state not in DELIVERIES and one.position == position.encode(0) for one in receipts)

    def _closed(self, command: Command) -> bool:
        """Whether brokers closed connections, by chance, just as at a command that they do not accept."""
        reasons = [one.reason for one in self.receipts[command.command_id]]
        return self.closes >= CLOSES and any("closed the connection" in reason for reason in reasons)

    def _ended(self, command: Command) -> bool:
        """Whether a receipt says how the command ended."""
        return any(one.state not in REMARKS for one in self.receipts[command.command_id])

    def copy(self, choice: int) -> None:
        """Commands are copied to the other topic, or that fails half-way."""
        if self.copying:
            order = self.copying.popleft()
            places = []
            for position in order.positions[: choice % 9] if choice % 10 == 0 else order.positions:
                if position < self.held_from:  # its device came back meanwhile, and has it
                    places.append(GONE)
                    continue
                places.append(CommandPosition(9000, len(self.copies), -1))
                kept = self._kept(position, None)
                assert kept is not None
                self.copies.append(kept)
            if len(places) < len(order.positions):
                self.core.relocation.copy_failed(order.relocation)
            else:
                self.core.relocation.copied(order.relocation, places, self.now)
            self.run()

    def trim(self, choice: int) -> None:
        """A look for what is wanted goes on, or a new one begins. At its end the holds are moved, behind the pulls that were
        ordered before, and Pulsar trims at once.
        """
        if not self.core.retention.scanning:
            self.core.retention.begin_scan()
        if not self.core.retention.scan(self.now, choice % 4):
            self.run()
            return
        while self.pulls:
            self.pull(0)
        self.held_from = max(self.held_from, self.core.retention.trims_to(self.now) or BEFORE_ALL)
        self.copies_from = max(self.copies_from, self.core.retention.keeps_copies_from() or BEFORE_ALL)
        self.run()

    def ask(self, choice: int) -> None:
        """A device has lost its state, and asks for what comes after a command that it had, or for all there is."""
        device = f"d{choice % 3}"
        had = set(self.inbox[device])
        places = [BEFORE_ALL] + [p for p, c in self.log if c is not None and c.command_id in had]
        self.asked += 1
        after = places[choice // 3 % len(places)]
        request = ResumeRequest(device, "", after, self.now, self.asked, self.place(device))
        self.requests.append(request)
        self._ask(request)
        self.run()

    def _ask(self, request: ResumeRequest) -> None:
        answer = self.core.asked(request, self.now)
        if answer is not None:
            self._do(AnswerRequest(request, answer, request.link))

    def find(self, _choice: int) -> None:
        """The commands of a device were found in Pulsar."""
        if not self.finds:
            return
        wanted = self.finds.popleft()
        ids = array("q")
        for position, command in self.log:
            there = command is not None and command.device == wanted.device and position >= self.trimmed
            if there and command is not None and wanted.after < position <= wanted.until:
                ids.extend((*position, command.expires_at_ms))
        trimmed = wanted.after < self.trimmed
        first = next((p for p, _ in self.log if p >= self.trimmed), None) if trimmed else None
        self.core.resume.found(wanted.device, wanted.epoch, ids, trimmed=trimmed, first=first, now_us=self.now)
        back_to = self.core.resume.resends_from
        self.held_from = self.held_from if back_to is None else min(self.held_from, back_to)
        self.run()

    def forget(self, choice: int) -> None:
        """Pulsar's retention ends for some of the commands without a subscription."""
        if self.log:
            until = self.log[choice % (len(self.log) // 2 + 1)][0]
            self.trimmed = max(self.trimmed, min(until, self.held_from))

    def _answer_arrives(self, action: AnswerRequest, link: str) -> None:
        self.puback_queues[link].append((action, 0))
        answer_key = (self.owners, action.request.token)
        if self.place(action.request.device) != link:
            # It reported what it has, and gets no answer unless it asks again.
            self.resumed.pop(action.request.device, None)
            return
        if answer_key not in self.answers_got:  # else the PUBACK was lost
            self.answers_got.add(answer_key)
            device, answer = action.request.device, action.answer
            first = (answer.first or BEFORE_ALL) if answer.trimmed else BEFORE_ALL
            self.left_out[device] = max(first, self.left_out.get(device, BEFORE_ALL))
            self.resumed[device] = Resumed(action.request.after, first, len(self.inbox[device]))

    def puback(self, choice: int) -> None:
        links = [link for link in self.links if self.puback_queues[link]]
        if links:
            # A broker may answer in any order.
            pubacks = self.puback_queues[links[choice % len(links)]]
            pubacks.rotate(-(choice % len(pubacks)))
            number, reason = pubacks.popleft()
            if isinstance(number, int):
                self.core.confirmed(number, reason, self.now)
            elif number in self.unanswered:
                self.unanswered.remove(number)
                self.requests.remove(number.request)
                self.core.request_answered(number.request)
            self.run()

    def store(self, choice: int) -> None:
        """Pulsar stores the oldest write to one of the topics and answers."""
        if not self.writes:
            return
        action = self._next_write(choice)
        self._stored(action)
        self._answer_write(action)
        self._check_stored()

    def _answer_write(self, action: object) -> None:
        """The owner learns that Pulsar has stored what it wrote."""
        if isinstance(action, StoreCursor):
            self.core.cursor_stored(action.device)
        elif isinstance(action, StoreReceipt):
            self.core.settlement.receipt_stored(action.position)
        elif isinstance(action, DeadLetter):
            self.core.settlement.dead_letter_stored(action.position)
        elif isinstance(action, StoreSegment):
            self.core.segment_stored(action.parked)
            if action.relocation:
                self.core.relocation.stored(action.relocation)
        self.run()

    def _next_write(self, choice: int) -> Action | WrittenAgain:
        """Take the oldest write to a topic: each keeps its order, and one may be far behind the others."""
        oldest = {_topic(action): action for action in reversed(self.writes)}
        action = list(oldest.values())[-1 - choice % len(oldest)]
        self.writes.remove(action)
        return action

    def work(self, choice: int) -> None:
        """Everything moves on a little."""
        self.connect_all()
        for _ in range(choice % 12):
            for step in (
                self.receive,
                self.arrive,
                self.puback,
                self.answer,
                self.pull,
                self.find,
                self.store,
            ):
                step(choice // 12 * 12 + 1)

    def lose_link(self, choice: int) -> None:
        self._lose_link(self._a_link(choice), closed=False)

    def _lose_link(self, link: str, *, closed: bool) -> None:
        self.up.discard(link)
        self.sockets[link].clear()
        self.puback_queues[link].clear()
        self.answers = deque(one for one in self.answers if one[2] != link)
        self.core.link_down(self.now, link, closed=closed)
        self.run()

    def close_link(self, choice: int) -> None:
        """A broker closes the connection; of what it sent before, some is read."""
        self.closes += 1
        self._close_link(self._a_link(choice))

    def _close_link(self, link: str) -> None:
        while self.puback_queues[link]:
            self.puback(0)
        self._lose_link(link, closed=True)

    def kill_broker(self, choice: int) -> None:
        """A broker dies, and is not there when we connect again at once."""
        link = self._a_link(choice)
        self._lose_link(link, closed=True)
        self.core.links[link].broker_unreachable()
        self.run()

    def connect(self, choice: int) -> None:
        link = self._a_link(choice)
        if link not in self.up:
            self.up.add(link)
            self.core.links[link].broker_answered()  # as it does when it is asked whether it reports absence
            self.sockets[link].extend(one for one in self.unanswered if one.link == link)
            self.core.link_up(link, reports_absence=True)
            self.run()
            for device, retained in sorted(self.births):
                if retained == link:
                    self.core.alive(device, self.now, link, dated=False)
                    self.run()

    def connect_all(self) -> None:
        for number in range(len(self.links)):
            self.connect(number)

    def pass_time(self, choice: int) -> None:
        self.now += (choice % 20) * SECOND // 10
        self.core.tick(self.now)
        self.run()

    def write_again(self, _choice: int) -> None:
        """All records of the cursors partition are old: push rewrites all of them, and removes ids without a cursor.

        The first rewrite of a device stores its ids before its cursor. After a crash in between there are ids alone.
        No core has them; ``CursorRewriter`` removes them before it rewrites the others.
        """
        stood = set(self.cursors) | set(self.segments)
        quiet = not self.writes and not self.core.outbox.writes  # else some are about to be removed
        for key in self.orphans:
            if self.core.devices.cursor_of(ids_device(key) or "") is None:  # else they are rewritten with its cursor
                self.writes.append(WrittenAgain(((key, b""),)))
        self.orphans.clear()
        for device in self.core.devices.stored:
            self.core.segments.rewrite(device)
            records = self.core.devices.records_of(device, all_keys=True)
            if records:
                self.writes.append(WrittenAgain(records))
        self.run()
        written = {key for one in self.writes if isinstance(one, WrittenAgain) for key, _ in one.records}
        written |= {one.key for one in self.writes if isinstance(one, StoreSegment)}
        unwritten = {key for device in self.core.segments.unwritten.values() for key in device.segment_write.keys}
        assert not quiet or not stood - written - unwritten, "a record stays where it is"

    def lose_cursors(self, _choice: int) -> None:
        """The cursors topic is deleted and re-created; its owner lives until all that it knew is stored again."""
        self._store_all()
        self.cursors.clear()
        self.segments.clear()
        for device in self.core.devices.with_cursors:
            records = self.core.devices.records_of(device, whole=True)
            if records:
                self.writes.append(WrittenAgain(records))
        self.core.segments.rewrite_all(self.now)
        self.run()
        self.forgotten = True
        self._store_all()
        self.forgotten = False
        self._check_stored()

    def _store_all(self) -> None:
        """Nothing happens but that Pulsar stores what there is to store."""
        quiet = 0
        # A segment may wait for a dead letter that waits for more than a store.
        while self.writes or (self.core.segments.pending and quiet < 3):
            quiet = 0 if self.writes else quiet + 1
            self.store(0)
            self.now += self.limits.coalesce_us
            self.core.tick(self.now)
            self.run()

    def crash(self, choice: int) -> None:
        """The process dies: of the writes under way a prefix is stored, of the packets sent some arrive."""
        for number in range(choice % (len(self.writes) + 1)):
            self._stored(self._next_write((choice >> 3) * number))
        cut = next((one for one in self.writes if _topic(one) == "cursors"), None)
        if isinstance(cut, (StoreCursor, WrittenAgain)) and choice % 2:
            self.cursors |= dict(cut.records[:-1])  # the ids apart, without the cursor that leaves them out
        for _ in range(choice // 3 % (sum(map(len, self.sockets.values())) + 1)):
            self.arrive(1)
        self._lose_acks(choice // 7)
        self.take_over(clean=False)

    def hand_over(self, choice: int) -> None:
        """The process ends in order, if what is under way ends soon. What it acknowledged of a batch is lost."""
        self._drain(choice)
        clean = self.core.clean
        self._lose_acks(choice)
        self.take_over(clean=clean)

    def _drain(self, choice: int) -> None:
        self.core.drain()
        self.run()
        for step in range(50):
            if self.core.settled:
                break
            for one in (self.arrive, self.puback, self.answer, self.pull, self.find, self.copy, self.store):
                one(choice + step)

    def take_over(self, *, clean: bool) -> None:
        self.writes.clear()
        for link in self.links:
            self.sockets[link].clear()
            self.puback_queues[link].clear()
        self.answers.clear()
        self.up.clear()
        self.owners += 1
        self.next_read = 0
        horizon = None if clean or not self.log else self.log[-1][0]
        self.pulls.clear()
        self.copying.clear()
        self.finds.clear()
        self.unanswered.clear()
        self.core = self.make_core(horizon)
        for request in list(self.requests):
            self._ask(request)
        self.run()

    def make_core(self, horizon: CommandPosition | None) -> Partition:
        """The next owner's core, from what is stored."""
        found = records_of(self.cursors, self.limits.remembered_ids)
        self.orphans = found.orphans
        owner, segments = str(self.owners), self.stored_segments()
        return Partition(
            0, self.limits.nested(), found.by_device, horizon, segments, owner=owner, now_us=self.now, links=self.links
        )

    def stored_segments(self) -> dict[str, dict[str, bytes]]:
        parked: dict[str, dict[str, bytes]] = defaultdict(dict)
        for key, payload in self.segments.items():
            parked[segment_device(key) or ""][key] = payload
        return parked

    # --- checks ---

    def run(self) -> None:
        while actions := self.core.take(self.now):
            for action in actions:
                self._do(action)
        assert all(flights.in_flight <= self.limits.window for flights in self.core.links)
        assert self.core.commands.awaited >= 0

    def _do(self, action: Action) -> None:
        if isinstance(action, Ack):
            self._check_ack(action.position)
            self.acked.add(action.position)
        elif isinstance(action, Push):
            assert action.link in self.up
            assert not action.command.expired(self.now)
            self._check_push(action)
            self.sockets[action.link].append(action)
            self.core.links[action.link].sent(action.number, self.now)
        elif isinstance(action, Pull):
            pairs = zip(action.positions, action.copies, strict=True)
            self.pulls.extend((action.device, action.epoch, position, place) for position, place in pairs)
        elif isinstance(action, Copy):
            self.copying.append(action)
        elif isinstance(action, FindCommands):
            self.finds.append(action)
        elif isinstance(action, DropRequest):
            self.requests.remove(action.request)
        elif isinstance(action, AnswerRequest):
            self._check_answer(action)
            for one in [one for one in self.unanswered if one.request is action.request]:
                self.unanswered.remove(one)  # its device has moved
            self.unanswered.append(action)
            if action.link in self.up:
                self.sockets[action.link].append(action)
        elif not isinstance(action, Forget):
            self.writes.append(action)

    def _check_push(self, action: Push) -> None:
        waits = [one for one in self.unanswered if one.request.device == action.command.device]
        assert not any(one.answer.commands for one in waits), "sent before the device got the answer"
        cursor = self.cursor(action.command.device)
        if cursor is not None:
            again = not self.limits.answers  # H26
            unsure = action.repeat and (again or self.asked)
            known = cursor.knows(action.command.command_id)
            assert unsure or not known, "a known id is pushed again"
            assert unsure or action.position > cursor.done

    def _stored(self, action: Action | WrittenAgain) -> None:
        if isinstance(action, WrittenAgain):
            self.cursors |= dict(action.records)
            self.cursors = {key: payload for key, payload in self.cursors.items() if payload}
        elif isinstance(action, StoreCursor):
            self.cursors |= dict(action.records)
            self.cursors = {key: payload for key, payload in self.cursors.items() if payload}
            if not self.forgotten:
                self._check_cursor(action)
        elif isinstance(action, StoreReceipt):
            self.receipts[action.receipt.command_id].append(action.receipt)
        elif isinstance(action, StoreSegment):
            if action.payload:
                assert len(_segment(action.payload)) <= 256
                self.segments[action.key] = action.payload
            else:
                self.segments.pop(action.key, None)
        elif isinstance(action, DeadLetter):
            self.dead.add(action.position)
            command = next(c for p, c in self.log if p == action.position)
            if command is not None:
                self.dead_ids.add(command.command_id)

    def _check_cursor(self, action: StoreCursor) -> None:
        cursor = self.cursor(action.device)
        assert cursor is not None
        parked = self.parked_positions(action.device, cursor)
        for position, command in self.log:
            if command is None or command.device != action.device or position > cursor.position:
                continue
            if position in parked or command.is_broadcast:
                continue  # a broadcast that was given up is not sent again, because each member has its own entry
            had = self.answered if self.limits.answers else self.taken.union(self.inbox[action.device])
            # A later owner can decide these two again; of any other end it knows by the receipt alone.
            assert command.command_id in had or command.expired(self.now) or self._ended(command), (
                f"the cursor of {action.device} passed {command.command_id}, and no receipt says how it ended"
            )

    def _check_stored(self) -> None:
        """With no write under way the next owner finds what is parked here, each where this one reads it."""
        if self.writes or self.core.outbox.writes or self.core.segments.pending or self.core.devices.dirty:
            return
        for device, parked in self.core.devices.all_parked():
            segments = {
                key: _segment(payload) for key, payload in self.segments.items() if segment_device(key) == device
            }
            cursor = self.cursor(device) or Cursor(256)
            after = Parked.loaded(segments | {"": cursor.resend}, cursor.done)
            found = {one.position: one.copy for one in after}
            for one in parked:
                assert one.position in found, f"{one.position} of {device} stands in no segment"
                assert found[one.position] == one.copy, f"the copy of {one.position} would be lost"

    def cursor(self, device: str) -> Cursor | None:
        """A device's cursor as Pulsar has it."""
        payload = self.cursors.get(device)
        if not payload:
            return None
        return _cursor(payload, self.cursors.get(ids_key(device), b""), self.limits.remembered_ids)

    def parked_positions(self, device: str, cursor: Cursor) -> set[CommandPosition]:
        """What Pulsar keeps for a device, by its segments and by what its cursor says goes again."""
        return {one.position for one in cursor.resend} | {
            one.position
            for key, payload in self.segments.items()
            if segment_device(key) == device
            for one in _segment(payload)
            if one.position > cursor.done
        }

    def _check_answer(self, action: AnswerRequest) -> None:
        """Requested commands are durably queued before the device gets the answer."""
        device = action.request.device
        cursor = self.cursor(device)
        if cursor is None:
            return
        queued = self.parked_positions(device, cursor)
        start = max(action.request.after, self.trimmed)
        for position, command in self.log:
            if command is None or command.device != device or command.expired(self.now):
                continue
            if start < position <= cursor.position and position >= (action.answer.first or BEFORE_ALL):
                assert position in queued, f"{command.command_id} was asked for again and is not queued"

    def _check_ack(self, position: CommandPosition) -> None:
        command = next(c for p, c in self.log if p == position)
        if command is None:
            assert position in self.dead
            return
        cursor = self.cursor(command.device) or Cursor(256)
        if position in self.parked_positions(command.device, cursor):
            return
        assert self.receipts_of(command), f"{command.command_id} was acknowledged without a receipt"

    def receipts_of(self, command: Command) -> list[Receipt]:
        return self.receipts[command.command_id]

    def _lose_acks(self, choice: int) -> None:
        # Acks are grouped, and a batch is acknowledged as a whole; one that a reader saw once is there for good.
        for index, position in enumerate(sorted(self.acked - self.settled_acks)):
            if (index + choice) % 3 == 0:
                self.acked.discard(position)
        self.settled_acks |= self.acked

    def finish(self) -> None:
        """Let everything work, then check: nothing lost, order kept, all acknowledged, a receipt for each."""
        self.refusals = False
        self.perfect = True
        self.away.clear()
        self.births.clear()
        self.connect_all()
        for turn in range(40 * len(self.log) + 100):
            self.receive(0)
            self.arrive(1)
            self.puback(0)
            self.answer(1)
            self.pull(0)
            self.copy(1)
            self.trim(3)
            self.find(0)
            for device in ("d0", "d1", "d2"):
                self.core.alive(device, self.now, self.place(device))
            self.store(0)
            self.now += SECOND
            self.core.tick(self.now)
            self.run()
            if turn > 20 and self._is_over():
                break
        assert self.core.settled
        assert (self.core.commands.pending, self.core.commands.pending_bytes) == (0, 0)
        assert self.core.segments.parked == 0
        assert not self.segments
        assert self.core.resume.pending == 0
        assert not self.requests
        for position, command in self.log:
            assert position in self.acked
            if command is None:
                continue
            self._check_end(position, command)
        self.check_order()
        for device in self.resumed:
            self.check_resumed(device)

    def _check_end(self, _position: CommandPosition, command: Command) -> None:
        """Check what became of a command in the end."""
        states = {receipt.state for receipt in self.receipts_of(command)}
        if command.is_broadcast:
            assert states == {"broadcast"}
            return
        confirmed = "answered" if self.limits.answers else "delivered"
        assert states & {confirmed, *FAILURES}, (command.command_id, states)
        if "rejected" in states:
            assert self.limits.attempts or self.poisonous(command) or self._closed(command)
            assert command.command_id in self.dead_ids, "what was given up is in the dead letters"
        # A broker may confirm one in vain, which is sent again then and given up.
        vain = "rejected" in states or (command.command_id in self.taken and command.expires_at_ms)
        # A member answers a copy that was given up and written again, and does not execute it: it has a later one since.
        vain = vain or (command.ref is not None and command.command_id in self.dead_ids)
        if confirmed in states and not vain and command.command_id not in self.inbox[command.device]:
            # An answer names the first command that it includes (resume_max): it may lack some that a former broker confirmed.
            first = next(p for p, c in self.log if c is not None and c.command_id == command.command_id)
            left_out = not self.limits.answers and first < self.left_out.get(command.device, BEFORE_ALL)
            assert left_out, command.command_id

    def _is_over(self) -> bool:
        """Whether nothing is left that could happen."""
        moving = (self.writes, self.answers, self.pulls, self.copying, self.finds, self.segments, self.requests)
        packets = (*self.sockets.values(), *self.puback_queues.values())
        done = self.core.settled and not self.core.commands.pending and not self.core.resume.pending
        return done and not any((*moving, *packets)) and all(one in self.acked for one, _ in self.log)

    def check_resumed(self, device: str) -> None:
        """After the last answer to its request a device got all that comes after its position, in order (H27). It may have had
        those to its group before, as broadcasts.
        """
        resumed = self.resumed[device]
        had_before, rank = set(), dict[str, int]()
        for position, command in self.log:
            if command is None or command.device != device:
                continue
            if position <= resumed.after or position < resumed.first:
                had_before.add(command.command_id)
            elif command.command_id not in had_before | self.dead_ids and command.ref is None:
                rank.setdefault(command.command_id, len(rank))
        # What the session at a former broker gives comes when the device is back there, before what it asked for.
        inbox, early = self.inbox[device], self.by_sessions[device]
        later = [inbox[n] for n in range(resumed.had, len(inbox)) if n not in early or inbox[n] not in inbox[n + 1 :]]
        got = [one for one in dict.fromkeys(later) if one in rank]
        with_early = [one for one in dict.fromkeys(inbox[resumed.had :]) if one in rank]
        in_order = any(ids == sorted(ids, key=rank.__getitem__) for ids in (got, with_early))
        assert in_order, f"{device} got what it asked for out of order"
        commands = {command.command_id: command for _, command in self.log if command is not None}
        missing = [one for one in rank if one not in got and not commands[one].expires_at_ms]
        assert not missing, f"{device} asked for {missing} and did not get them"

    def check_order(self) -> None:
        """First arrivals at a device are in the order of first appearance in the log: of its own commands, and of those of
        its group, because a broadcast overtakes its own.

        Those given up to the dead letters are left out: a replayed batch may bring their ids again later.
        """
        for of_group in (False, True):
            self._check_order([(p, c) for p, c in self.log if c is not None and (c.ref is not None) is of_group])

    def _check_order(self, commands: list[tuple[CommandPosition, Command]]) -> None:
        rank: dict[str, CommandPosition] = {}
        for position, command in commands:
            rank.setdefault(command.command_id, position)
        for device, ids in self.inbox.items():
            start = self.left_out.get(device, BEFORE_ALL)  # of an earlier one a repetition may come
            first = [i for i in dict.fromkeys(ids) if i in rank and rank[i] >= start and i not in self.dead_ids]
            assert first == sorted(first, key=rank.__getitem__), f"{device} got its commands out of order"
