"""A device's cursor: up to which position its commands are settled, and which command ids it had lately.

``bridge.contract.cursors`` has the form in which it is stored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from bridge.contract.commands import BEFORE_ALL, CommandPosition
from bridge.contract.cursors import MAX_UNPROVEN, CursorRecord, RememberedIds, Unproven, ids_key, key_of_term
from bridge.contract.segments import ParkedId

__all__ = ["Cursor"]


@dataclass(slots=True, eq=False)
class Cursor:
    """A device's cursor, which remembers the last ``capacity`` settled ids; the other fields are as in ``CursorRecord``."""

    capacity: int
    position: CommandPosition = BEFORE_ALL
    resend_from: CommandPosition | None = None
    resend: list[ParkedId] = field(default_factory=list)
    unproven: list[Unproven] = field(default_factory=list)
    delivered_at_ms: int = 0
    online: bool = False
    maybe_seen_to: CommandPosition | None = None
    link: str = ""
    link_at_us: int = 0
    stored_in: tuple[str, ...] = ()
    """Terms of its records in Pulsar: those of others are removed once it is written."""
    ids_stored_in: tuple[str, ...] = ()
    """The same for the ids that are stored apart."""
    _ids: RememberedIds = field(init=False)
    _fresh: int = 0  # so many of the last ids are in no record apart
    _unnamed: int = 0  # so many of the last ids were in no record yet

    def __post_init__(self) -> None:
        self._ids = RememberedIds(self.capacity)

    def knows(self, command_id: str) -> bool:
        """Return whether this command was settled lately: the device had it, or it is in the dead letters."""
        return self._ids.knows(command_id)

    def delivered(self, command_id: str) -> bool:
        """Return whether the device had this command lately."""
        return self._ids.delivered(command_id)

    @property
    def done(self) -> CommandPosition:
        """Parked commands at or below it need no push any more."""
        return self.position if self.resend_from is None else self.resend_from

    @property
    def has_state(self) -> bool:
        """Whether it differs from a new cursor, or has a record in Pulsar."""
        has = self.position > BEFORE_ALL or self.resend_from is not None or bool(self._ids) or self.online
        return has or bool(self.stored_in)

    def maybe_seen(self, position: CommandPosition) -> bool:
        """Return whether a successor of the writer of this cursor may have sent the command at ``position``."""
        return self.maybe_seen_to is not None and position <= self.maybe_seen_to

    def pass_over(self, position: CommandPosition) -> None:
        """Move to ``position``: whatever is at or below it needs no push any more."""
        self.position = max(self.position, position)
        if self.resend_from is not None:
            self.resend_from = position if self.resend_from < position < self.position else self.resend_from
            if position >= self.position:
                self.resend_from = None
            self.resend = [one for one in self.resend if self.resend_from and one.position > self.resend_from]

    def resend_parked(self, resend: list[ParkedId]) -> None:
        """Send these commands again; they are parked, in order, before what is parked already."""
        before = resend[0].position
        self.resend_from = before._replace(batch_index=before.batch_index - 1)
        self.resend = [*resend, *self.resend]

    def replay_from(self, first: CommandPosition | None) -> None:
        """Send the parked commands from ``first`` on again, none for None; their segments are stored before this cursor."""
        self.resend = []
        self.resend_from = None if first is None else first._replace(batch_index=first.batch_index - 1)

    def device_seen(self, at_us: int) -> None:
        """The device gave a sign of life: what was confirmed until then has arrived."""
        gone = next((n for n, one in enumerate(self.unproven) if one.at_us > at_us), len(self.unproven))
        del self.unproven[:gone]

    def add_unproven(self, one: Unproven) -> None:
        """The broker confirmed a command."""
        self.unproven.append(one)
        del self.unproven[:-MAX_UNPROVEN]

    def settle(self, position: CommandPosition, command_id: str, *, delivered: bool, at_us: int = 0) -> None:
        """Move to ``position`` and remember the id, of which no repetition is sent. ``at_us``: when it was delivered."""
        self.pass_over(position)
        if delivered:
            self.delivered_at_ms = max(self.delivered_at_ms, at_us // 1000)
        self._note_new(self._ids.add(command_id, delivered=delivered, at_us=at_us))

    def _note_new(self, count: int) -> None:
        self._fresh += count
        self._unnamed += count

    def merge(self, other: Cursor) -> None:
        """Add what ``other``, a record of the same device, has beyond this one. If this one resends, the position stays, and
        what the broker alone confirmed above it is sent again as well, also if the other was to send it again.
        """
        if self.resend_from is None:
            self.position = max(self.position, other.position)
        else:
            perhaps = (*other.resend, *(one.one for one in other.unproven))
            above = {one for one in perhaps if one.position > self.position}
            self.resend = sorted(above.union(self.resend))
        self.delivered_at_ms = max(self.delivered_at_ms, other.delivered_at_ms)
        self.maybe_seen_to = max(
            (one for one in (self.maybe_seen_to, other.maybe_seen_to) if one is not None), default=None
        )
        if other.link and other.link_at_us > self.link_at_us:
            self.link, self.link_at_us = other.link, other.link_at_us
        # Two owners may have sent the same commands: each takes the place of one, with its last confirmation.
        last = {one.one.position: one for one in sorted((*self.unproven, *other.unproven), key=lambda one: one.at_us)}
        self.unproven = sorted(last.values())[-MAX_UNPROVEN:]
        self._note_new(self._ids.merge(other._ids))

    def records(
        self, device: str, term: str = "", *, whole: bool = False, all_keys: bool = False
    ) -> tuple[tuple[str, bytes], ...]:
        """Return keys and payloads of what the owner of ``term`` is to write now, in this order: the cursor, and behind it
        the removal of the records of former terms.

        Ids that cursors named before come first once there are so many that a record apart costs less than to write
        them with each cursor; ``whole``: the cursor has them all, as Pulsar may not have those that were written before;
        ``all_keys``: no record of this device that was written before is needed any more.
        """
        apart: list[tuple[str, bytes]] = []
        removed = [key_of_term(device, one) for one in self.stored_in if one != term]
        if whole:
            self._fresh = len(self._ids)
        elif all_keys or self._fresh > math.isqrt(2 * max(self.capacity, len(self._ids))):
            apart = [(key_of_term(ids_key(device), term), self._ids.encode(0, len(self._ids) - self._unnamed))]
            self._fresh = self._unnamed
        if whole or apart:
            removed += [key_of_term(ids_key(device), one) for one in self.ids_stored_in if one != term]
            self.ids_stored_in = (term,) if apart else ()
        self._unnamed = 0
        self.stored_in = (term,)
        return (*apart, (key_of_term(device, term), self.encode()), *((key, b"") for key in removed))

    def encode(self) -> bytes:
        """Return the cursor as the JSON payload of its message, without the ids that are stored apart."""
        uncertain = self.maybe_seen_to is not None and self.done < self.maybe_seen_to
        record = CursorRecord(
            self.position,
            self._ids,
            self.resend_from,
            self.resend,
            self.unproven,
            self.delivered_at_ms,
            self.online,
            self.maybe_seen_to if uncertain else None,
            self.link,
            self.link_at_us,
        )
        return record.encode(len(self._ids) - self._fresh)

    def with_ids(self, payload: bytes) -> None:
        """Add the ids of a record apart, which are older than those in the cursor. Raises ContractError."""
        older = RememberedIds.decode(payload, self.capacity)
        self._fresh = min(self._fresh, len(self._ids))
        self._ids.put_before(older)

    @classmethod
    def decode(cls, payload: bytes, capacity: int) -> Cursor:
        """Read a cursor back. Raises ContractError for a payload of another version."""
        fields = CursorRecord.decode(payload, capacity)._asdict()
        ids = fields.pop("ids")
        cursor = cls(capacity, **fields)
        cursor._ids, cursor._fresh, cursor.stored_in = ids, len(ids), ("",)
        return cursor
