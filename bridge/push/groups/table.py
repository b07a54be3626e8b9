"""Reads who is in which group, and which devices there are, from Pulsar: the shell of ``membership``."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import structlog

from bridge.contract import CURSORS_TOPIC, GROUP_MEMBERS_TOPIC, partition_name
from bridge.errors import ContractError, TransientError
from bridge.groups import member_of
from bridge.pulsar_client import (
    EARLIEST,
    Message,
    MessageId,
    PulsarClient,
    ReceiveTimeout,
    key_of,
    our_errors,
    received,
)
from bridge.push.cursor import NOWHERE, ids_device
from bridge.push.ends import ledgers_of
from bridge.push.groups.log import Stopped
from bridge.push.groups.membership import Membership
from bridge.push.parked import segment_device
from bridge.settings.pulsar import PulsarSettings

__all__ = ["KnownDevices", "MemberTable"]

log = structlog.get_logger("push")

_READ_MS: Final = 200
_END_MS: Final = 2000
_PATIENCE_S: Final = 30.0
_AT_ONCE: Final = 10_000
_VIEW_PATIENCE_S: Final = 10.0


class MemberTable:
    """The memberships that Spark wrote: loaded whole, then followed. All on the thread that makes it."""

    def __init__(
        self,
        client: PulsarClient,
        settings: PulsarSettings,
        membership: Membership,
        over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Read all of it. Raises TransientError or RefusedError, and Stopped when it is ``over`` before."""
        self._over = over
        self._settings = settings
        self._topic = partition_name(settings.system_topic(GROUP_MEMBERS_TOPIC), 0)
        self._client = client
        self._membership = membership
        last = self._load()
        # Not the compacted view any more: there a tombstone could be gone before it was seen.
        self._reader: Any = client.reader(self._topic, last, inclusive=last is EARLIEST)

    def _load(self) -> MessageId:
        reader: Any = self._client.reader(self._topic, EARLIEST, compacted=True)
        last = EARLIEST
        try:
            while (message := self._next_of_view(reader, last)) is not None:
                self._put(key_of(message) or "", message.data())
                last = message.message_id()
        finally:
            with our_errors(f"closing the reader of {self._topic}"):
                reader.close()
        return last

    def _next_of_view(self, reader: Any, last: MessageId) -> Message | None:
        """Return the next message of the compacted view behind ``last``, None at its end.

        What Pulsar says to be the end may be compacted away, and nothing comes. To take a stall for that would lose what
        stands behind it: when it is trimmed but for the compacted view, nobody reads it any more. So would a broker that
        says of a partition that it has just loaded that nothing is there (``ends``); what is there comes all the same.
        """
        patience = time.monotonic() + _VIEW_PATIENCE_S
        while True:
            with our_errors(f"reading {self._topic}"):
                if not reader.has_message_available() and self._is_end(last):
                    return None
            message = received(reader.read_next, _READ_MS, f"reading {self._topic}")
            if message is not None or time.monotonic() > patience:
                return message
            if self._over():
                raise Stopped

    def _is_end(self, last: MessageId) -> bool:
        if last is not EARLIEST:
            return True
        ledgers = ledgers_of(self._settings, self._topic)
        return ledgers is None or ledgers.end == NOWHERE

    def _put(self, key: str, payload: bytes) -> None:
        if not key:
            return  # what compaction leaves of a message in the midst of a batch; or it is no UTF-8
        try:
            group, device, member = member_of(key, payload)
        except ContractError as e:
            log.warning("a membership cannot be read and is left out: see who writes it", why=str(e))
            return
        self._membership.put(group, device, member=member)

    def _next(self, timeout_ms: int) -> bool:
        message = received(self._reader.read_next, timeout_ms, f"reading {self._topic}")
        if message is not None:
            self._put(key_of(message) or "", message.data())
        return message is not None

    def take(self) -> None:
        """Bring what came to the membership, without waiting, and not all of what comes without end."""
        for _ in range(_AT_ONCE):
            if not self._next(0):
                return

    def take_all(self) -> None:
        """Bring all that Pulsar has now to the membership. Raises TransientError when it does not answer, Stopped when it
        is to end before.

        Pulsar is asked for its end, and nothing waits for a message that may not come: a command to a group waits for this.
        """
        patience = time.monotonic() + _PATIENCE_S
        while self._more():
            if self._next(_READ_MS):
                patience = time.monotonic() + _PATIENCE_S
            elif self._over():
                raise Stopped
            elif time.monotonic() > patience:
                raise TransientError(f"reading {self._topic} to its end: nothing comes")

    def _more(self) -> bool:
        with our_errors(f"reading {self._topic}"):
            return bool(self._reader.has_message_available())

    def close(self) -> None:
        """Close the reader; before the client is closed."""
        with our_errors(f"closing the reader of {self._topic}"):
            self._reader.close()


class KnownDevices:
    """The devices that have had a command: those with a cursor. Asked for now and then, where patterns want to know."""

    def __init__(self, client: PulsarClient, settings: PulsarSettings, membership: Membership) -> None:
        """Opens a reader for each partition. Raises TransientError or RefusedError."""
        self._membership = membership
        self._readers: dict[str, Any] = {
            name: client.reader(name, EARLIEST, compacted=True)
            for name in client.partitioned(settings.system_topic(CURSORS_TOPIC))
        }

    def take(self) -> None:
        """Bring those that came since the last time to the membership. Raises TransientError."""
        found: set[str] = set()
        for name, reader in self._readers.items():
            with our_errors(f"reading {name}"), suppress(ReceiveTimeout):  # the end may be compacted away
                while reader.has_message_available():
                    key = key_of(reader.read_next(_END_MS))
                    device = _device_of(key or "")
                    if device:
                        found.add(device)
        self._membership.knows(found)

    def close(self) -> None:
        """Close the readers."""
        for name, reader in self._readers.items():
            with our_errors(f"closing the reader of {name}"):
                reader.close()


def _device_of(key: str) -> str | None:
    """Return the device of a record, None where it is of none: no device's name begins with U+0000, push's own keys do."""
    device = ids_device(key) or segment_device(key) or key
    return device if device and not device.startswith("\0") else None
