"""Reads a partition to its end, and finds that end if the broker's answer is unreliable.

After a restart, Pulsar (4.0) sometimes answers that a partition that it has just loaded has no last message. Push
would then treat sent commands of the former owner as new, and parked commands as trimmed. A replay would not see
which dead letters were replayed. The partition's ledgers, which Pulsar's admin lists, are reliable.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import structlog

from bridge.contract import Position
from bridge.contract.commands import BEFORE_ALL, CommandPosition
from bridge.errors import DeniedError, RefusedError, TransientError
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import EARLIEST, Message, MessageId, PulsarClient, message_id, our_errors, received
from bridge.pulsar.messages import position_of
from bridge.pulsar.provisioning_plan import COMPACTION
from bridge.pulsar.sending import close_quietly
from bridge.settings.pulsar import PulsarSettings

__all__ = ["EVERYTHING", "Ledgers", "end_of", "has_entry", "is_at_end", "ledgers_of", "read_partition", "read_to_end"]

log = structlog.get_logger("pulsar")

_TIMEOUT_S: Final = 5.0
_READ_MS: Final = 500
_COMPACTED_S: Final = 1.0
"""Silence of a compacted view, in seconds, before the reader seeks. The same silence after that is the end."""
_SOUGHT_AGAIN_S: Final = 10.0
_DENIED_S: Final = 10.0
"""Wait, in seconds, for a message that the ledgers have and the broker denies."""
_PATIENCE_S: Final = 30.0
_MAX_INDEX: Final = 2**31 - 1
EVERYTHING: Final = CommandPosition(2**63 - 1, 2**63 - 1, _MAX_INDEX)
"""After every position."""


class Ledgers:
    """The ledgers of a partition and their numbers of entries, from ``internalStats``."""

    def __init__(self, stats: Mapping[str, Any]) -> None:
        self._entries = {int(one["ledgerId"]): int(one["entries"]) for one in stats.get("ledgers") or []}
        if self._entries:  # the open ledger is listed with 0 entries
            last = max(self._entries)
            self._entries[last] = max(self._entries[last], int(stats.get("currentLedgerEntries", 0)))
        horizon = ((stats.get("cursors") or {}).get(COMPACTION) or {}).get("markDeletePosition", "-1:-1")
        last_entry = stats.get("lastConfirmedEntry", "-1:-1")
        self.compacted = Position.parse(horizon) >= Position.parse(last_entry) > Position(-1, -1)
        """Whether all of it was compacted; its last entry may be a removal, which no reader receives."""

    @property
    def end(self) -> CommandPosition:
        """The last existing position; BEFORE_ALL if the partition is empty."""
        last = max((ledger for ledger, entries in self._entries.items() if entries), default=None)
        return BEFORE_ALL if last is None else CommandPosition(last, self._entries[last] - 1, _MAX_INDEX)

    def has(self, position: CommandPosition) -> bool:
        """Whether the entry of ``position`` exists."""
        return position.entry < self._entries.get(position.ledger, 0)

    def positions(self, start: Position) -> Iterator[Position]:
        """Yield the position of each entry, from ``start`` to the end."""
        for ledger, entries in sorted(self._entries.items()):
            if ledger >= start.ledger:
                yield from (Position(ledger, n) for n in range(start.entry * (ledger == start.ledger), entries))

    def before_the_end(self, count: int) -> tuple[CommandPosition | None, bool, int]:
        """Return the position ``count`` entries before the end, whether it is the first, and their number."""
        left = count
        for ledger, entries in sorted(self._entries.items(), reverse=True):
            if entries >= left:
                return CommandPosition(ledger, entries - left, -1), False, count
            left -= entries
        return None, True, count - left


def ledgers_of(settings: PulsarSettings, topic: str) -> Ledgers | None:
    """Return the ledgers of a partition, None if the admin does not allow it.

    Raises TransientError if the admin does not answer, or says that there is no such partition: while a partition moves,
    that may be as wrong as the broker's answer.
    """
    try:
        with PulsarAdmin(settings, timeout_s=_TIMEOUT_S) as admin:
            return Ledgers(admin.internal_stats(topic))
    except DeniedError as e:
        log.debug("Pulsar's admin does not list the ledgers of a partition", topic=topic, why=str(e))
        return None
    except RefusedError as e:
        raise TransientError(e.what, remedy=e.remedy) from e


def has_entry(settings: PulsarSettings, topic: str, position: CommandPosition) -> bool:
    """Whether a partition has an entry although the broker reports none. If the admin does not list the ledgers, the
    broker's answer counts. Raises TransientError if the admin does not answer.
    """
    ledgers = ledgers_of(settings, topic)
    return ledgers is not None and ledgers.has(position)


def end_of(settings: PulsarSettings, topic: str, last: MessageId) -> CommandPosition:
    """Return the last position of a partition; ``last`` is the broker's answer.

    If the broker reports none and the ledgers are unknown, EVERYTHING: then too much counts as sent before.
    """
    if last.entry_id() >= 0:
        return CommandPosition(last.ledger_id(), last.entry_id(), _MAX_INDEX)
    ledgers = _known_ledgers(settings, topic)
    return EVERYTHING if ledgers is None else ledgers.end


def _known_ledgers(settings: PulsarSettings, topic: str) -> Ledgers | None:
    """Return the ledgers of a partition, None if the admin does not answer or does not list them."""
    try:
        return ledgers_of(settings, topic)
    except TransientError as e:
        log.debug("the end of a partition is unknown", topic=topic, why=str(e))
        return None


def is_at_end(settings: PulsarSettings, topic: str, last: CommandPosition) -> bool | None:
    """Whether ``last`` is the end of a partition, as the broker reports; None if its admin does not answer.

    If the admin does not list the ledgers, the broker's answer counts.
    """
    try:
        ledgers = ledgers_of(settings, topic)
    except TransientError as e:
        log.debug("the end of a partition is unknown", topic=topic, why=str(e))
        return None
    return ledgers is None or ledgers.end[:2] <= last[:2]


def read_to_end(
    reader: Any,
    settings: PulsarSettings,
    topic: str,
    *,
    start: MessageId = EARLIEST,
    last: CommandPosition = BEFORE_ALL,
    compacted: bool = False,
    trusting: bool = False,
    over: Callable[[], bool] = lambda: False,
) -> Iterator[Message]:
    """Yield the messages of a partition until its end, which may move meanwhile, or ``over``.

    ``start`` is where ``reader`` began, ``last`` the last message that it returned before this call. ``trusting``: the
    broker's answer about the end counts, because the reader was at the end before.

    A broker may deny messages that exist. The last entry may be a marker or a removed record, which no reader
    receives. So this function waits some seconds for them. A compaction that completes during the read can leave a
    reader without the messages that follow. So a silent reader seeks to its position, and the broker re-reads from it.

    Raises TransientError if no message arrives although the broker reports one, or if the reader has no connection for as
    long. Raises it also if only the broker reports the end and the admin does not answer.
    """
    silent_since = sought_at = None
    while not over():
        lost, asked = None, time.monotonic()
        try:
            with our_errors(f"reading {topic}"):
                denied = not reader.has_message_available()
        except TransientError as e:  # its client connects again, but not always at the end of a terminated topic
            denied, lost = False, e
            ledgers = _known_ledgers(settings, topic)
            if ledgers is not None and ledgers.end[:2] <= last[:2]:
                return
        at_end = denied and (trusting or is_at_end(settings, topic, last))
        if at_end or (at_end is None and last != BEFORE_ALL):
            return
        message = received(reader.read_next, _READ_MS, f"reading {topic}")
        if message is not None:
            position = position_of(message.message_id())
            if sought_at is None or position > last:
                silent_since, last = None, position
                yield message
            continue
        now = time.monotonic()
        silent_since = silent_since or (asked if lost else now)
        if compacted and lost is None and now - silent_since > _COMPACTED_S:
            if sought_at is None or now - sought_at > _SOUGHT_AGAIN_S:
                _seek(reader, topic, start, last)
                sought_at = now
            elif now - sought_at > _COMPACTED_S and _may_be_compacted(settings, topic):
                return
        if now - silent_since > (_DENIED_S if denied and at_end is not None else _PATIENCE_S):
            if denied and at_end is not None:
                return
            raise lost or TransientError(f"reading {topic} to its end: no message arrives")


def read_partition(
    client: PulsarClient,
    partition: str,
    *,
    start: MessageId = EARLIEST,
    inclusive: bool = True,
    last: CommandPosition = BEFORE_ALL,
    compacted: bool = False,
    queue: int = 1000,
    name: str | None = None,
    over: Callable[[], bool] = lambda: False,
) -> Iterator[Message]:
    """Yield the messages of a partition from ``start`` to its end, as ``read_to_end``, with a reader of its own.

    Raises RefusedError if the partition does not exist, DeniedError without the right to consume, TransientError as
    ``read_to_end``.
    """
    reader = client.reader(partition, start, queue=queue, inclusive=inclusive, compacted=compacted, name=name)
    try:
        yield from read_to_end(
            reader, client.settings, partition, start=start, last=last, compacted=compacted, over=over
        )
    finally:
        close_quietly(reader)


def _seek(reader: Any, topic: str, start: MessageId, last: CommandPosition) -> None:
    with our_errors(f"reading {topic}"):
        reader.seek(start if last == BEFORE_ALL else message_id(-1, last.ledger, last.entry, -1))


def _may_be_compacted(settings: PulsarSettings, topic: str) -> bool:
    try:
        ledgers = ledgers_of(settings, topic)
    except TransientError:
        return False
    return ledgers is None or ledgers.compacted
