"""This process among those that share some work: it advertises itself, follows the others, and says which parts to own.

Its record on the instances topic says what it would own and what it has (``sharing.Beat``), more than once a second. All
processes read the same records in the same order, so they come to the same result. Records are timed by their arrival here:
no clock of another host counts, except for those that were stored before this process came.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Protocol

import structlog

from bridge.contract import INSTANCES_TOPIC, partition_name
from bridge.errors import ContractError, PulsebridgeError
from bridge.protocols.board import Advertiser, read_board
from bridge.protocols.records import InstanceRecord, ProtocolRecord
from bridge.protocols.sharing import GROUPS, Beat, Peers
from bridge.pulsar.client import LATEST, Message, PulsarClient, received
from bridge.pulsar.messages import leave_out_foreign, record_key
from bridge.pulsar.sending import close_quietly
from bridge.settings.pulsar import PulsarSettings

__all__ = ["Share", "SharingInstance"]

log = structlog.get_logger("sharing")

_BEAT_S: Final = 0.6
_PROMISED_S: Final = 2.5
"""The interval that the record names: readers with another clock are to be patient."""
_LOOK_MS: Final = 200
_REOPEN_S: Final = 30.0
"""Without any record for so long, not even our own, the reader is opened again: the topic may be another one."""
_AGAIN_S: Final = 1.0
_REST_S: Final = 300.0
"""For so long it takes nothing over after a takeover that hung."""
_TIMEOUT_S: Final = 5.0


class Share(Protocol):
    """What processes share: a partition of the commands, the groups, or an MQTT session of ingest. Its own thread tries to own
    it while it is wanted.
    """

    @property
    def has(self) -> bool:
        """Whether this process has its exclusive producer, or reads the session."""

    @property
    def stuck(self) -> bool:
        """Whether its takeover takes too long, because of the MQTT broker."""

    @property
    def away(self) -> Collection[str]:
        """The links whose MQTT brokers do not accept commands, while it is owned here."""

    def want(self, wanted: bool, *, fence: bool) -> None:
        """Try to own it, and if ``fence`` take it from a process that is silent; or hand it over to another process."""


class SharingInstance:
    """Advertises this process, and advises each of its ``shares``, by number, whether it is wanted here.

    While it does not see its own record, or cannot read the others', each share stays where it is, and what no process owns
    is wanted here, unless it is ``polite``.
    """

    def __init__(
        self,
        pulsar: PulsarSettings,
        shares: Mapping[int, Share],
        protocol: str,
        *,
        polite: bool = False,
        counted: Callable[[int], None] = lambda _processes: None,
    ) -> None:
        """``protocol`` names what is shared; for ``polite`` see ``sharing``. ``counted`` gets the number of processes."""
        self._shares = shares
        self._protocol = protocol
        self._counted = counted
        timeout_s = min(pulsar.operation_timeout, _TIMEOUT_S)
        self._client = PulsarClient(pulsar.model_copy(update={"operation_timeout": timeout_s}))
        self._start = InstanceRecord.of_this_process(_PROMISED_S)
        self._peers = Peers(self._start.instance, polite=polite)
        self._leaving = False
        self._rests_until = 0.0
        self._ended = threading.Event()
        self._advertised = Beat(frozenset(), frozenset())
        self._assigned: list[int] = []
        self._advertiser = Advertiser(self._client, self._record, _BEAT_S)
        self._thread = threading.Thread(target=self._run, name="sharing", daemon=True)

    def start(self) -> None:
        """Begin to advertise and to follow. Unless it is polite, all shares are wanted until the other processes are known."""
        self._advertiser.start()
        self._thread.start()

    def leave(self) -> None:
        """Let the others take what this process gives up, before its shares end."""
        self._leaving = True
        self._advertiser.renew()

    def stop(self) -> None:
        """Remove the record, after all shares have ended."""
        self._ended.set()
        self._advertiser.stop()
        self._thread.join()
        try:
            self._client.close()
        except PulsebridgeError as e:
            log.debug("closing the connection to Pulsar", why=e.what)

    def _beat(self) -> Beat:
        shares = self._shares.items()
        has = frozenset(number for number, share in shares if share.has)
        if self._leaving:
            may = frozenset[int]()
        elif time.monotonic() < self._rests_until:
            may = frozenset(number for number in has if not self._shares[number].stuck)
        else:
            may = frozenset(self._shares)
        return Beat(may, has, frozenset(link for _, share in shares for link in share.away))

    def _record(self) -> InstanceRecord:
        """Return the record to write. On the advertiser's thread."""
        beat = self._advertised = self._beat()
        return replace(
            self._start,
            state="stopping" if self._leaving else "running",
            written_ms=time.time_ns() // 1_000_000,
            protocols={self._protocol: ProtocolRecord(beat.encode())},
        )

    # --- following the others ---

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._plan()
                self._follow()
            except PulsebridgeError as e:
                log.debug("the other processes are not known", why=e.what)
            except Exception:  # the shares do not wait for this thread: its end must not go unnoticed
                log.error("the other processes are not known. Action: report this", shown=1, exc_info=True)
            self._ended.wait(_AGAIN_S)

    def _follow(self) -> None:
        topic = self._client.settings.system_topic(INSTANCES_TOPIC)
        if not self._client.partitioned(topic):
            log.warning(
                "this process cannot see others, because a topic does not exist. Action: run `pulsebridge provision`",
                missing=topic,
                shown=1,
            )
            return
        partition = partition_name(topic, 0)
        reader: Any = self._client.reader(partition, LATEST)  # before the stored ones are read: so none is missed
        try:
            self._read_stored()
            seen = time.monotonic()
            while not self._ended.is_set() and time.monotonic() - seen < _REOPEN_S:
                message = received(reader.read_next, _LOOK_MS, f"reading {partition}")
                if message is not None:
                    self._take(message)
                    seen = time.monotonic()
                self._plan()
        finally:
            close_quietly(reader)

    def _read_stored(self) -> None:
        now, now_ms = time.monotonic(), time.time_ns() // 1_000_000
        for record in read_board(self._client, self._ended.is_set):
            # In a container that was restarted we have the process id of the one before.
            former = record.host == socket.gethostname() and record.pid == os.getpid()
            if not former and not record.ended(now_ms):
                with suppress(ContractError):  # of a later release; the next one is reported
                    self._reported(record, now - max(0, now_ms - record.written_ms) / 1000)

    def _take(self, message: Message) -> None:
        key, payload = record_key(message, INSTANCES_TOPIC), message.data()
        try:
            if key and payload:
                self._reported(InstanceRecord.decode(payload), time.monotonic())
            elif key:
                self._peers.reported(key, None, time.monotonic())
        except ContractError as e:
            leave_out_foreign(INSTANCES_TOPIC, message.message_id(), e.what, key or "")

    def _reported(self, record: InstanceRecord, at: float) -> None:
        if self._protocol in record.protocols:
            self._peers.reported(record.instance, Beat.decode(record.protocols[self._protocol].data), at)

    # --- advising the shares ---

    def _plan(self) -> None:
        now = time.monotonic()
        if now >= self._rests_until and any(share.stuck for share in self._shares.values()):
            self._rests_until = now + _REST_S
            log.warning(
                "this process cannot take anything over, and leaves it to others if there are any. Action: see that it "
                "reaches the MQTT broker",
                shown=1,
            )
        beat = self._beat()
        if beat != self._advertised:
            self._advertiser.renew()
        self._counted(len(self._peers.live(now)))
        plan = self._peers.plan(beat, now)
        if plan is not None and not self._leaving:
            self._advise(plan, now)

    def _advise(self, plan: Mapping[int, str], now: float) -> None:
        me = self._start.instance
        for number, share in self._shares.items():
            share.want(plan.get(number, me) == me, fence=self._peers.is_silent(number, now))
        assigned = [number for number, name in sorted(plan.items()) if name == me and number != GROUPS]
        if plan and assigned != self._assigned:
            self._assigned = assigned
            log.info("the processes share the work", of=self._protocol, assigned=assigned)
