"""Settlement of commands: receipts, dead letters, and the cursor that passes them, in the commit orders of ``states``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bridge.contract.commands import Command, CommandPosition
from bridge.contract.cursors import Unproven
from bridge.contract.segments import ParkedId
from bridge.push.actions import DeadLetter, Outbox, StoreCursor
from bridge.push.command import CommandRegistry, LateAnswers, TrackedCommand
from bridge.push.cursor import Cursor
from bridge.push.device import Device, Devices
from bridge.push.limits import Limits
from bridge.push.states import PASSABLE, CommandEvent, CommandState, Mode

__all__ = ["DUPLICATE", "Settlement", "result_of_passed"]

DUPLICATE: Final = "this command id came before"
_GIVEN_UP: Final = "recovered: given up before the push worker was replaced; its first receipt has the reason"
_OVERFLOW: Final = "an earlier command of the device overflowed"
_RESENT: Final = "sent again: the device asked for it, or may not have had it"


def result_of_passed(cursor: Cursor, command: Command, now_us: int, *, answers: bool) -> tuple[str, str]:
    """Return the final state, and why, of a command that a former owner settled. ``answers``: those of devices confirm."""
    if cursor.delivered(command.command_id):
        return "answered" if answers else "delivered", "recovered: confirmed before the push worker was replaced"
    if cursor.knows(command.command_id):
        return "duplicate", _GIVEN_UP  # its own receipt was stored before the cursor
    if command.expired(now_us):
        return "expired", ""
    return "duplicate", "at or below the device's cursor"


@dataclass(slots=True, eq=False)
class Settlement:
    """Settles commands, and lets the cursor of a device pass the settled head of its queue."""

    _limits: Limits
    _outbox: Outbox
    _commands: CommandRegistry
    _devices: Devices
    _late: LateAnswers

    # --- arrivals that are not sent ---

    def arrived_invalid(self, position: CommandPosition, reason: str, command: Command, size: int) -> None:
        """A message of ``size`` bytes came that is not a valid command: dead letter, and a receipt if its id is known."""
        tracked = self._commands.add(TrackedCommand(position, command), size)
        tracked.on(CommandEvent.GIVE_UP)
        self._outbox.write(DeadLetter(position, command.device, reason))

    def arrived(
        self, device: Device, position: CommandPosition, command: Command, now_us: int
    ) -> TrackedCommand | None:
        """A command of a device came that is not parked. Returns it if it is to be sent or parked, None if it is settled."""
        if position <= device.cursor.position:
            self._arrived_passed(device, position, command, now_us)
            return None
        if position in device.given_up:
            self._outbox.acknowledge(position)
            return None
        tracked = self._commands.add(TrackedCommand(position, command))
        live, late = device.mode is Mode.LIVE, position < device.last_waiting
        if device.cursor.knows(command.command_id) or (live and command.command_id in device.ids):
            self._outbox.store_receipt(tracked, "duplicate", DUPLICATE)
        elif command.expired(now_us) and (late or not live):
            self._outbox.store_receipt(tracked, "expired", "")
        elif late:  # it was settled, and only its acknowledgement was lost
            self._outbox.store_receipt(tracked, "overflowed", _OVERFLOW)
        else:
            return tracked
        return None

    def _arrived_passed(self, device: Device, position: CommandPosition, command: Command, now_us: int) -> None:
        if position > device.loaded or self._commands.former_left_cleanly:
            self._outbox.acknowledge(position)  # it has its receipt; only the acknowledgement did not reach Pulsar
            return
        tracked = self._commands.add(TrackedCommand(position, command, CommandState.SETTLED))
        self._outbox.store_receipt(
            tracked, *result_of_passed(device.cursor, command, now_us, answers=self._limits.answers.confirm)
        )

    # --- ends ---

    def confirmed(self, device: Device, tracked: TrackedCommand) -> None:
        """The command is delivered, or answered."""
        tracked.on(CommandEvent.CONFIRM)
        device.failures = 0
        device.retry_at_us = 0
        device.replay.probing = False
        device.parked.probe_wait_us = 0
        if tracked.pulled:
            device.cursor.online = True  # it is written with what this settles
            if tracked.answer is not None and not tracked.resend and device.queue[0] is not tracked:
                # The cursor does not pass it yet: if it is parked again, it must not be sent twice.
                self._late.give(tracked.position, tracked.answer)
            why = _RESENT if tracked.resend else ""
            self._note(tracked, CommandEvent.CONFIRM, self._success(tracked), why)
        elif not self._limits.answers.confirm and not tracked.command.is_broadcast:
            device.cursor.device_seen(tracked.confirmed_at_us - self._limits.parked.unsure_us)
            one = ParkedId(tracked.position, tracked.command.expires_at_ms, True, True)
            device.cursor.add_unproven(Unproven(one, tracked.confirmed_at_us))
        self.pass_head(device)
        self._devices.look_at(device)

    def settle(self, device: Device, tracked: TrackedCommand, state: str, reason: str) -> None:
        """The command is not sent any more: its receipt, which one that is resent has already, and the device's next one."""
        if tracked.pulled and not tracked.resend:
            self._note(tracked, CommandEvent.SETTLE, state, reason)
            return
        tracked.on(CommandEvent.SETTLE)
        if not tracked.pulled:
            tracked.settled = True
            self._outbox.store_receipt(tracked, state, reason)
        self.pass_head(device)
        self._devices.look_at(device)

    def give_up(self, device: Device, tracked: TrackedCommand, state: str, reason: str) -> None:
        """Write the command to the dead letters; receipt and cursor follow. A broadcast is only settled: members have entries."""
        if tracked.command.is_broadcast:
            self.settle(device, tracked, state, reason)
            return
        tracked.on(CommandEvent.GIVE_UP)
        tracked.given_up = state, reason
        device.given_up.add(tracked.position)
        self._outbox.write(DeadLetter(tracked.position, device.name, reason))

    def passes_overflow(self, device: Device, head: TrackedCommand) -> bool:
        """Have the cursor pass what overflowed before ``head``, the device's next command. Returns whether that is stored.

        A later owner that got an overflowed command again would send it, and take it for the only one that may have
        been sent before.
        """
        to = device.parked.overflowed_to
        if not device.cursor.position < to < head.position:
            return True
        if not device.gives_up_before(head.position):
            passed = TrackedCommand(to, Command("", device.name, "", b""), CommandState.SETTLED, settled=True)
            device.cursor.pass_over(to)
            device.cursor_write.unstored.append(passed)
            self._devices.mark_dirty(device)
        return False

    def pass_head(self, device: Device) -> None:
        """Move the cursor over the settled head of the queue, but not over a command whose receipt is not stored."""
        while device.queue and device.queue[0].state in PASSABLE:
            if device.gives_up_before(device.queue[0].position):
                return
            tracked = device.queue.popleft()
            device.ids.discard(tracked.command.command_id)
            if tracked.state is CommandState.SETTLED:
                device.cursor.pass_over(tracked.position)
                if tracked.pulled or tracked.listed:  # no other record shows that it is settled
                    device.cursor_write.unstored.append(tracked)
                    self._devices.mark_dirty(device)
                continue
            # Dead letters included: if the id is written again, a later owner must not send it after the next.
            device.cursor.settle(
                tracked.position,
                tracked.command.command_id,
                delivered=tracked.state is CommandState.CONFIRMED,
                at_us=tracked.answered_at_us or tracked.confirmed_at_us,
            )
            device.given_up.discard(tracked.position)
            tracked.on(CommandEvent.SETTLE)
            device.cursor_write.unstored.append(tracked)
            self._devices.mark_dirty(device)

    @staticmethod
    def _success(tracked: TrackedCommand) -> str:
        return "answered" if tracked.answered_at_us else "delivered"

    # --- writes ---

    def store_cursors(self) -> None:
        """Write each cursor that moved, unless one of its device is under way."""
        dirty = self._devices.dirty
        for name in list(dirty):
            device = dirty[name]
            write = device.cursor_write
            if not write.under_way:
                del dirty[name]
                write.under_way = True
                write.storing, write.unstored = write.unstored, []
                self._outbox.write(StoreCursor(name, device.cursor.records(name, self._devices.term)))

    def cursor_stored(self, device: Device) -> list[TrackedCommand]:
        """Pulsar has the device's cursor. Returns the commands that it passed."""
        self._outbox.stored()
        write = device.cursor_write
        write.under_way = False
        stored, write.storing = write.storing, []
        for tracked in stored:
            if tracked.pulled or tracked.settled:
                continue  # it has its receipt, and its acknowledgement
            if tracked.given_up is None:
                self._outbox.store_receipt(tracked, self._success(tracked), "")
            elif tracked.maybe_had:
                self._commands.acknowledge(tracked.position)
        return stored

    def receipt_stored(self, position: CommandPosition) -> None:
        """Pulsar has the receipt of the command at ``position``."""
        self._outbox.stored()
        tracked = self._commands.written_at(position)
        if tracked is None:
            return
        device = self._devices.awake.get(tracked.command.device)
        queued = tracked.after_receipt is not None and device is not None and device.queues(tracked)
        self._noted(tracked)
        if not tracked.pulled and not (queued and tracked.maybe_had):  # else its id must be in a cursor first
            self._commands.acknowledge(position)
        if tracked.given_up is not None and device is not None:
            self._devices.sleep(device)

    def dead_letter_stored(self, position: CommandPosition) -> None:
        """Pulsar has the dead letter of the message at ``position``."""
        self._outbox.stored()
        tracked = self._commands.written_at(position)
        if tracked is None:
            return
        if tracked.given_up is not None:
            self._note(tracked, CommandEvent.BURY, *tracked.given_up)
        elif tracked.command.command_id:
            reason = "not a command of this contract; see the dead letters"
            self._outbox.store_receipt(tracked, "rejected", reason)
        else:
            self._commands.acknowledge(position)

    def _note(self, tracked: TrackedCommand, after: CommandEvent, state: str, reason: str) -> None:
        """Write the receipt of a command before the cursor passes it; ``after`` follows.

        Its message is acknowledged already and does not arrive again, so no later owner could write the receipt. After a
        crash in between the command is sent again, with a second receipt. A dead letter takes the same way: the cursor
        does not show a later owner the end of the command.
        """
        tracked.on(CommandEvent.NOTE)
        tracked.after_receipt = after
        self._outbox.store_receipt(tracked, state, reason)

    def _noted(self, tracked: TrackedCommand) -> None:
        after = tracked.after_receipt
        if after is None:
            return
        device = self._devices.awake[tracked.command.device]
        if device.mode is not Mode.LIVE or not device.queues(tracked):
            device.given_up.discard(tracked.position)  # else when the cursor has passed it
        if tracked.state is CommandState.NOTED:  # else the receipt is of an earlier pull
            tracked.on(after)
        self.pass_head(device)
        self._devices.look_at(device)
