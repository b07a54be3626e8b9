"""Reads a partition to its end, and finds where that is, where the broker's own answer is not enough.

Asked for the last message of a partition that it has just loaded, after its restart, Pulsar (4.0) now and then answers
that there is none. Push would take what the former owner had sent for new, and parked commands for trimmed; a replay
would not see which dead letters were replayed. The ledgers of the partition, which its admin names, do not err.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import structlog

from bridge.commands import NOWHERE, CommandPosition
from bridge.contract import Position
from bridge.errors import PulsebridgeError, TransientError
from bridge.provisioning_plan import COMPACTION
from bridge.pulsar_admin import PulsarAdmin
from bridge.pulsar_client import EARLIEST, Message, MessageId, message_id, our_errors, received
from bridge.settings.pulsar import PulsarSettings

__all__ = ["EVERYTHING", "Ledgers", "end_of", "is_at_end", "is_there", "ledgers_of", "read_to_end"]

log = structlog.get_logger("pulsar")

_TIMEOUT_S: Final = 5.0
_READ_MS: Final = 500
_COMPACTED_S: Final = 1.0
"""So long a compacted view is silent before it is asked for once more, and again before that counts as its end."""
_SOUGHT_AGAIN_S: Final = 10.0
_DENIED_S: Final = 10.0
"""So long something is waited for that the ledgers have, and the broker denies."""
_PATIENCE_S: Final = 30.0
_MAX_INDEX: Final = 2**31 - 1
EVERYTHING: Final = CommandPosition(2**63 - 1, 2**63 - 1, _MAX_INDEX)
"""Behind every position."""


class Ledgers:
    """The ledgers of a partition, as ``internalStats`` shows them: how many entries each has. Pure."""

    def __init__(self, stats: Mapping[str, Any]) -> None:
        self._entries = {int(one["ledgerId"]): int(one["entries"]) for one in stats.get("ledgers") or []}
        if self._entries:  # of the one that is being written it says 0
            last = max(self._entries)
            self._entries[last] = max(self._entries[last], int(stats.get("currentLedgerEntries", 0)))
        horizon = ((stats.get("cursors") or {}).get(COMPACTION) or {}).get("markDeletePosition", "-1:-1")
        last_entry = stats.get("lastConfirmedEntry", "-1:-1")
        self.compacted = Position.parse(horizon) >= Position.parse(last_entry) > Position(-1, -1)
        """Whether all of it was compacted: what stands last may be a removal, which nobody is given."""

    @property
    def end(self) -> CommandPosition:
        """The last position that is there; NOWHERE when there is none."""
        last = max((ledger for ledger, entries in self._entries.items() if entries), default=None)
        return NOWHERE if last is None else CommandPosition(last, self._entries[last] - 1, _MAX_INDEX)

    def has(self, position: CommandPosition) -> bool:
        """Whether the entry of ``position`` is there."""
        return position.entry < self._entries.get(position.ledger, 0)

    def before_the_end(self, back: int) -> tuple[CommandPosition | None, bool, int]:
        """Return the position ``back`` entries before the end, whether that is the beginning, and how many they are."""
        left = back
        for ledger, entries in sorted(self._entries.items(), reverse=True):
            if entries >= left:
                return CommandPosition(ledger, entries - left, -1), False, back
            left -= entries
        return None, True, back - left


def ledgers_of(settings: PulsarSettings, topic: str) -> Ledgers | None:
    """Return the ledgers of a partition, None where the admin does not let us see them.

    Raises TransientError when it does not answer.
    """
    try:
        with PulsarAdmin(settings, timeout_s=_TIMEOUT_S) as admin:
            return Ledgers(admin.internal_stats(topic))
    except TransientError:
        raise
    except PulsebridgeError as e:
        log.debug("the ledgers of a partition are not shown", topic=topic, why=str(e))
        return None


def is_there(settings: PulsarSettings, topic: str, position: CommandPosition) -> bool:
    """Whether a partition has an entry, though the broker says that nothing more is there; its word is all that counts
    where the admin shows nothing. Raises TransientError when that does not answer.
    """
    ledgers = ledgers_of(settings, topic)
    return ledgers is not None and ledgers.has(position)


def end_of(settings: PulsarSettings, topic: str, last: MessageId) -> CommandPosition:
    """Return the last position of a partition, of which the broker says that it is ``last``.

    Where it says that there is none, and nobody else tells, EVERYTHING: more then counts as sent before than was.
    """
    if last.entry_id() >= 0:
        return CommandPosition(last.ledger_id(), last.entry_id(), _MAX_INDEX)
    try:
        ledgers = ledgers_of(settings, topic)
    except TransientError as e:
        log.debug("the end of a partition is not known", topic=topic, why=str(e))
        ledgers = None
    return EVERYTHING if ledgers is None else ledgers.end


def is_at_end(settings: PulsarSettings, topic: str, last: CommandPosition) -> bool | None:
    """Whether nothing stands behind ``last``, of which the broker says so; None where its admin does not answer.

    The broker's word is all that counts where the admin shows nothing.
    """
    try:
        ledgers = ledgers_of(settings, topic)
    except TransientError as e:
        log.debug("the end of a partition is not known", topic=topic, why=str(e))
        return None
    return ledgers is None or ledgers.end[:2] <= last[:2]


def read_to_end(
    reader: Any,
    settings: PulsarSettings,
    topic: str,
    *,
    start: MessageId = EARLIEST,
    last: CommandPosition = NOWHERE,
    compacted: bool = False,
    trusting: bool = False,
    over: Callable[[], bool] = lambda: False,
) -> Iterator[Message]:
    """Yield the messages of a partition up to its present end, which may move meanwhile, or until ``over``.

    ``start`` is where ``reader`` began, ``last`` the last message that it returned before this call. ``trusting``: the
    broker's answer about the end counts, because the reader was at the end before.

    A broker may deny messages that exist, and the last entry may be a marker or a removed record that no reader
    receives. So this function waits some seconds for them. A compaction that ends during the read can leave a reader
    without the messages that follow. So a silent reader seeks to its position, and the broker reads again from there.

    Raises TransientError if no message arrives although the broker reports one, or if only the broker reports the end
    and the admin does not answer.
    """
    silent_since = sought_at = None
    while not over():
        with our_errors(f"reading {topic}"):
            denied = not reader.has_message_available()
        at_end = denied and (trusting or is_at_end(settings, topic, last))
        if at_end or (at_end is None and last != NOWHERE):
            return
        message = received(reader.read_next, _READ_MS, f"reading {topic}")
        if message is not None:
            where = message.message_id()
            place = CommandPosition(where.ledger_id(), where.entry_id(), where.batch_index())
            if sought_at is None or place > last:
                silent_since, last = None, place
                yield message
            continue
        now = time.monotonic()
        silent_since = silent_since or now
        if compacted and now - silent_since > _COMPACTED_S:
            if sought_at is None or now - sought_at > _SOUGHT_AGAIN_S:
                _seek(reader, topic, start, last)
                sought_at = now
            elif now - sought_at > _COMPACTED_S and _may_be_compacted(settings, topic):
                return
        if now - silent_since > (_DENIED_S if denied and at_end is not None else _PATIENCE_S):
            if denied and at_end is not None:
                return
            raise TransientError(f"reading {topic} to its end: nothing comes")


def _seek(reader: Any, topic: str, start: MessageId, last: CommandPosition) -> None:
    with our_errors(f"reading {topic}"):
        reader.seek(start if last == NOWHERE else message_id(-1, last.ledger, last.entry, -1))


def _may_be_compacted(settings: PulsarSettings, topic: str) -> bool:
    try:
        ledgers = ledgers_of(settings, topic)
    except TransientError:
        return False
    return ledgers is None or ledgers.compacted
