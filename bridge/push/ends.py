"""Where a partition ends, and what is gone from it, where the broker's own answer is not enough.

Asked for the last message of a partition that it has just loaded, after its restart, Pulsar (4.0) now and then answers
that there is none. Push would take what the former owner had sent for new, and parked commands for trimmed. The ledgers
of the partition, which its admin names, do not err.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import structlog

from bridge.commands import CommandPosition
from bridge.errors import PulsebridgeError, TransientError
from bridge.pulsar_admin import PulsarAdmin
from bridge.pulsar_client import MessageId
from bridge.push.cursor import NOWHERE
from bridge.settings.pulsar import PulsarSettings

__all__ = ["EVERYTHING", "Ledgers", "end_of", "is_there", "ledgers_of"]

log = structlog.get_logger("push")

_TIMEOUT_S: Final = 5.0
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
