"""Broadcasts in the world of ``push_world``: three devices of one group, which obey the rule of ``group_member``.

A broadcast precedes the entries of its members. Any device may lose it; answers may come before the entry, late or twice.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field

from bridge.contract import Receipt
from bridge.contract.commands import BEFORE_ALL, Command, CommandPosition, GroupRef, broadcaster
from bridge.push.actions import Push
from tests.simulation.push_world import PushWorld
from tests.support.group_member import GroupMember

__all__ = ["BroadcastWorld"]

NAMES = ("d0", "d1", "d2")
_FIRST = 10_000


def _text(position: CommandPosition) -> str:
    return "none" if position == BEFORE_ALL else position.encode(0)


def _ref(command: Command) -> GroupRef:
    assert command.ref is not None
    return command.ref


@dataclass
class BroadcastWorld(PushWorld):
    elsewhere: bool = False  # another owner publishes the broadcasts
    unwritten: deque[Command] = field(default_factory=deque)  # entries
    published: list[Command] = field(default_factory=list)  # broadcasts of another owner
    members: dict[str, GroupMember] = field(default_factory=lambda: defaultdict(GroupMember))
    group_answers: deque[tuple[str, CommandPosition, bool, str]] = field(default_factory=deque)
    group_count: int = 0

    # --- what may happen ---

    def write_group(self, choice: int) -> None:
        """A command to the group is written: most are broadcast."""
        number, self.group_count = self.group_count, self.group_count + 1
        position, after = CommandPosition(1, number, -1), CommandPosition(1, number - 1, -1) if number else BEFORE_ALL
        broadcast = choice % 4 > 0 and self.limits.answers
        expires = self.now // 1000 + 1500 if choice % 5 == 0 else 0
        ref = GroupRef("g", f"G{number}", position, 1, broadcast)
        if broadcast:
            for link in self.links:
                sent = GroupRef("g", f"G{number}", position, 1, broadcast=True, after=after)
                self._write(
                    Command(
                        f"{link}b-{_FIRST + number}",
                        broadcaster("g", link),
                        "g",
                        b"",
                        expires_at_ms=expires,
                        ref=sent,
                        link=link,
                    )
                )
        self.unwritten += [
            Command(f"{name}-{_FIRST + number}", name, "t", b"", expires_at_ms=expires, ref=ref) for name in NAMES
        ]

    def _write(self, command: Command) -> None:
        if self.elsewhere and command.is_broadcast:
            self.published.append(command)
        else:
            self.log.append((CommandPosition(len(self.log) // 4, len(self.log) % 4, -1), command))

    def expand(self, choice: int) -> None:
        """The next entries are written, some of them twice."""
        for _ in range(1 + choice % 3):
            if self.unwritten:
                command = self.unwritten.popleft()
                self._write(command)
                if choice % 7 == 0:
                    self._write(command)

    def broadcast(self, choice: int) -> None:
        """Another owner publishes one of its last broadcasts, perhaps again."""
        if self.published:
            command = self.published[-1 - choice % min(3, len(self.published))]
            self._fan_out(command, command.link, choice)

    def answer_broadcast(self, choice: int) -> None:
        """A device's answer to a broadcast reaches us, perhaps before its entry, perhaps late; some come twice."""
        if not self.group_answers:
            return
        self.group_answers.rotate(-(choice % len(self.group_answers)))
        device, position, failed, link = self.group_answers.popleft()
        if choice % 4 == 0 and not self.perfect:
            self.group_answers.append((device, position, failed, link))
        if not failed:
            self.answered.add(f"{device}-{_FIRST + position.entry}")
        self.core.answered(position, b"done", self.now, link, failed=failed, device=device)
        self.run()

    def answer(self, choice: int) -> None:
        if self.group_answers and (choice % 2 or not self.answers):
            self.answer_broadcast(choice // 2)
        else:
            super().answer(choice)

    def ask(self, choice: int) -> None:
        """A device that has lost its state has lost that of the group as well, but for what it stored with its position."""
        device = f"d{choice % 3}"
        had = {c.command_id for _, c in self.log if c is not None and c.command_id in self.inbox[device]}
        places = [BEFORE_ALL] + [p for p, c in self.log if c is not None and c.command_id in had]
        after = places[choice // 3 % len(places)]
        stored = [c.ref.position for p, c in self.log if c and c.ref and p <= after and c.command_id in had]
        self.members[device] = GroupMember(_text(max(stored, default=BEFORE_ALL)))
        super().ask(choice)

    # --- the broker, and the devices ---

    def _push_arrives(self, push: Push, link: str, choice: int) -> None:
        if not push.command.is_broadcast:
            super()._push_arrives(push, link, choice)
        elif self.poisonous(push.command) and not self.perfect:
            self._close_link(link)
        elif self.refusals and choice % 4 == 0:
            self.puback_queues[link].append((push.number, 0x97 if choice % 8 else 0x10))
        else:
            there = self._fan_out(push.command, link, choice)
            self.puback_queues[link].append((push.number, 0 if there else 0x10))

    def _fan_out(self, command: Command, link: str, choice: int) -> bool:
        there = [name for name in NAMES if self.place(name) == link and name not in self.away]
        for number, name in enumerate(there):
            if self.perfect or choice // 4 % (number + 2):
                self._broadcast_arrives(command, name, link, choice // 8 + number)
        return bool(there)

    def _broadcast_arrives(self, command: Command, name: str, link: str, choice: int) -> None:
        ref, member = _ref(command), self.members[name]
        assert ref.after is not None
        failed = choice % 7 == 0 and not self.perfect
        if not member.had(_text(ref.position)):
            if not member.follows(_text(ref.after)):
                return
            if not failed:
                member.executed(_text(ref.position))
                self.inbox[name].append(f"{name}-{_FIRST + ref.position.entry}")
        if choice % 3 or self.perfect:
            self.group_answers.append((name, ref.position, failed, link))

    def _is_received(self, push: Push, link: str, choice: int) -> None:
        command = push.command
        if command.ref is None:
            super()._is_received(push, link, choice)
            return
        assert push.repeat or not command.ref.broadcast, "the device may have had it as a broadcast"
        member, answers = self.members[command.device], len(self.answers)
        inbox = self.inbox[command.device]
        if push.repeat and member.had(_text(command.ref.position)):
            # What was given up may be written again; the device has got a later one since.
            had = command.command_id in inbox or command.command_id in self.dead_ids
            assert had, f"{command.device} lacks {command.command_id} and thinks it has it"
        super()._is_received(push, link, choice)
        failed = len(self.answers) > answers and self.answers[-1][1]
        if not failed and not (push.repeat and member.had(_text(command.ref.position))):
            member.executed(_text(command.ref.position))

    def _do(self, action: object) -> None:
        if isinstance(action, Push) and action.command.is_broadcast:
            assert action.link == action.command.link, "a broadcast goes to the broker that it names"
        super()._do(action)  # type: ignore[arg-type]

    def _lose_link(self, link: str, *, closed: bool) -> None:
        self.group_answers = deque(one for one in self.group_answers if one[3] != link)
        super()._lose_link(link, closed=closed)

    def take_over(self, *, clean: bool) -> None:
        if self.owners:
            self.group_answers.clear()
        super().take_over(clean=clean)

    # --- checks ---

    def receipts_of(self, command: Command) -> list[Receipt]:
        if not command.is_broadcast:
            return super().receipts_of(command)
        return [one for one in self.receipts[_ref(command).command_id] if not one.device]

    def finish(self) -> None:
        while self.unwritten:
            self.expand(1)
        super().finish()
