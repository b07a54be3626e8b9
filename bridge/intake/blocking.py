"""Handles partitions that store nothing: asks Pulsar why, and blocks them if allowed.

With ``ingest.on_blocked: wait``, the default, their messages wait. The link waits too, because acknowledgements leave
in order of arrival (H4). ``deadletter`` blocks a partition without progress for ``ingest.blocked_after`` while Pulsar
answered, in this order:

1. Store a note in the dead letter topic, to prove that Pulsar stores messages. If that fails, the count restarts.
2. Close the partition's producer, so that its unconfirmed messages have failed and cannot arrive later.
3. Store the block as a property of the topic (``bridge.dead_letters.blocks``), so that it outlives this process.
4. Send waiting and new messages to the dead letters, in order, until a replay ends the block.

Threads: ``turn`` and the fields of a ``Flow`` belong to the ingest loop. A thread pool calls Pulsar.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Literal

import structlog

from bridge.contract import (
    DEAD_LETTERS_TOPIC,
    NOTE_PROBE,
    P_DEAD_NOTE,
    P_DEAD_REASON,
    P_DEAD_TOPIC,
    base_topic,
    partition_name,
    partition_number,
)
from bridge.dead_letters.blocks import Block, load_blocks, store_block
from bridge.errors import DeniedError, PulsebridgeError, RefusedError
from bridge.intake.background import Background
from bridge.intake.flow import Flow, Producer, Reading
from bridge.intake.provisioning import quota_of
from bridge.pulsar.acks import Entry
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import PulsarClient, our_errors
from bridge.pulsar.sending import Receipts, close_quietly
from bridge.settings.ingest import IngestSettings

__all__ = ["Blocking"]

log = structlog.get_logger("ingest")

_POLL_S: Final = 2.0
_PROBE_S: Final = 10.0
_ASKED_AT_ONCE: Final = 8


class Blocking:
    """The blocked partitions of one worker, ``owner``.

    The loop calls ``retired`` when a partition's producer was removed, ``released`` when it is to be reopened. The
    pool calls ``remake`` with a topic that may not exist. ``background`` gets its results.
    """

    def __init__(
        self,
        client: PulsarClient,
        admin: PulsarAdmin,
        ingest: IngestSettings,
        background: Background,
        *,
        owner: str,
        retired: Callable[[Flow], None],
        released: Callable[[Flow], None],
        remake: Callable[[str], None],
    ) -> None:
        self._client = client
        self._admin = admin
        self._deadletter = ingest.on_blocked == "deadletter"
        self._blocked_s = float(ingest.blocked_after)
        self._owner = owner
        self._retired = retired
        self._released = released
        self._remake = remake
        self._blocks: dict[str, Flow] = {}
        """Partitions with a block."""
        self.due = 0.0
        """When the loop calls ``turn`` next."""
        self._poll_due = 0.0  # infinite during a poll
        self._ending = threading.Event()
        self._report = background.report
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="ingest-blocked")

    # --- on the loop thread ---

    def turn(self, now: float, flows: Mapping[str, Flow]) -> None:
        """Check each partition, and ask Pulsar about those without progress."""
        if self._ending.is_set():
            return
        self.due = now + 0.5
        asked, every_s = 0, max(0.5, min(self._blocked_s / 4, 5.0))
        for flow in flows.values():
            if flow.phase != "open":
                continue
            flow.stall.looked(now, waiting=len(flow.unstored) > 0)
            if (
                self._deadletter
                and not flow.dead_letters
                and flow.stall.blocked(now, self._blocked_s)
                and not flow.opening
            ):
                flow.phase = "blocking"
                self._pool.submit(self._block, flow, flow.producer, flow.unstored.oldest, flow.stall.why)
            elif asked < _ASKED_AT_ONCE and flow.stall.ask_due(now, every_s):
                asked += 1
                self._pool.submit(self._ask, flow)
        if self._blocks:
            self._check_blocks(now)

    def restore(self, flow: Flow, block: Block) -> None:
        """Restore a block that this worker stored before its restart."""
        flow.diverted = block.why
        flow.phase = "blocked" if block.state == "blocked" else "releasing"
        self._blocks[flow.partition] = flow
        log.warning(
            "partition is blocked, its messages go to the dead letters. Action: fix the topic, then run "
            f"pulsebridge resend --topic {base_topic(flow.partition)}",
            partition=flow.partition,
            why=block.why,
        )

    def _check_blocks(self, now: float) -> None:
        for flow in self._blocks.values():
            flow.forget_stored()
            if flow.phase == "releasing" and not flow.diverting:
                flow.phase = "drained"
                self._pool.submit(self._store_release, flow, flow.diverted)
        if now >= self._poll_due:
            self._poll_due = math.inf
            self._pool.submit(self._poll, list(self._blocks))

    # --- the pool's results, on the loop thread ---

    def _is_blocked(self, flow: Flow, why: str, failure: str, closed: bool, now: float) -> None:
        if failure:
            log.info("partition was not blocked", partition=flow.partition, why=failure)
            flow.phase = "open"
            flow.stall.restart()
            if closed:
                self._retired(flow)
                self._released(flow)
            return
        flow.phase = "blocked"
        flow.diverted = why
        self._blocks[flow.partition] = flow
        self._retired(flow)
        log.warning(
            "partition is blocked, its messages go to the dead letters until a replay. Action: fix the topic, then "
            f"run pulsebridge resend --topic {base_topic(flow.partition)}",
            partition=flow.partition,
            why=why,
            waiting=len(flow.unstored),
        )

    def _polled(self, names: list[str], states: dict[str, dict[int, str]], now: float) -> None:
        self._poll_due = now + _POLL_S
        for name in names:  # without partitions blocked since the request
            flow = self._blocks[name]
            found = states.get(base_topic(name))
            if found is None:  # Pulsar did not answer: keep the state
                continue
            state = found.get(_number(name))
            if state is None and flow.phase in ("blocked", "drained"):
                del self._blocks[name]
                flow.phase, flow.diverted = "open", ""
                flow.diverting.clear()
                flow.stall.progressed()
                log.warning("partition is no longer blocked. Action: none", partition=name)
                self._released(flow)
            elif state == "releasing" and flow.phase == "blocked":
                flow.phase = "releasing"
            elif state == "releasing" and flow.phase == "drained":
                self._pool.submit(self._store_release, flow, flow.diverted)  # the property was not stored

    # --- in the pool ---

    def _ask(self, flow: Flow) -> None:
        good, why = True, ""
        try:
            used, limit = quota_of(self._admin.stats(flow.partition))
            if limit > 0 and used >= limit:
                why = (
                    f"its backlog quota is used up ({used} of {limit} bytes): let its subscriptions consume, or raise "
                    "it (pulsar-admin namespaces set-backlog-quota)"
                )
        except DeniedError as e:
            log.debug("the state of a partition may not be read", why=e.what)
        except RefusedError as e:
            why = e.what
            self._remake(base_topic(flow.partition))  # the producer of a deleted topic only waits
        except PulsebridgeError as e:
            good, why = False, e.what
        self._report(partial(flow.stall.answered, good=good, why=why))

    def _block(self, flow: Flow, producer: Producer | None, oldest: Entry | None, why: str) -> None:
        why = why or f"{flow.partition} stored nothing for {self._blocked_s:g} s"
        failure, closed = "", False
        try:
            self._probe(flow.partition, why)
            self._ending.wait(min(5.0, self._blocked_s))  # late receipts may still come
            if oldest is None or oldest.stored or self._ending.is_set():
                failure = "it stores messages"
            else:
                closed = True
                if producer is not None:
                    close_quietly(producer)
                store_block(self._admin, base_topic(flow.partition), self._block_of(flow, "blocked", why))
        except PulsebridgeError as e:
            failure = e.what
        self._report(partial(self._is_blocked, flow, why, failure, closed))

    def _block_of(self, flow: Flow, state: Literal["blocked", "drained"], why: str) -> Block:
        return Block(_number(flow.partition), self._owner, state, time.time_ns() // 1000, why)

    def _probe(self, partition: str, why: str) -> None:
        """Store a note in the dead letter topic. Raises PulsebridgeError if Pulsar does not store it."""
        properties = {P_DEAD_NOTE: NOTE_PROBE, P_DEAD_TOPIC: partition, P_DEAD_REASON: why}
        note = Reading(0, 0, 0.0, key="note", properties=properties)
        dead_letters = self._admin.settings.system_topic(DEAD_LETTERS_TOPIC)
        producer = self._client.chunking_producer(partition_name(dead_letters, 0), max_pending=2)
        try:
            receipts = Receipts()
            with our_errors("writing a note to the dead letters"):
                producer.send([note], receipts.of(0))
            receipts.wait(_PROBE_S)
            if receipts.error(0, "writing a note to the dead letters") is not None:
                raise PulsebridgeError("Pulsar does not store dead letters either")
        finally:
            close_quietly(producer)

    def _store_release(self, flow: Flow, why: str) -> None:
        try:
            store_block(self._admin, base_topic(flow.partition), self._block_of(flow, "drained", why))
        except PulsebridgeError as e:  # the next poll finds the old state and retries
            log.debug("the new state of a block could not be stored", why=str(e))

    def _poll(self, names: list[str]) -> None:
        states: dict[str, dict[int, str]] = {}
        for topic in sorted({base_topic(name) for name in names}):
            try:
                blocks = load_blocks(self._admin, topic)
            except PulsebridgeError as e:
                log.debug("the blocks could not be read", topic=topic, why=str(e))
                continue
            states[topic] = {b.partition: b.state for b in blocks if b.client_id == self._owner}
        self._report(partial(self._polled, names, states))

    def blocks_of(self, topic: str) -> dict[int, Block]:
        """Return this worker's blocks of a topic, by partition. It calls Pulsar: call it outside the loop."""
        if not self._deadletter and self._admin.settings.provision == "off":
            return {}
        try:
            found = load_blocks(self._admin, topic)
        except DeniedError:
            if self._deadletter:
                raise
            return {}  # without the right to read blocks, this worker has stored none
        return {b.partition: b for b in found if b.client_id == self._owner}

    def close(self) -> None:
        """Stop the threads. It waits for Pulsar."""
        self._ending.set()
        self._pool.shutdown(wait=True, cancel_futures=True)


def _number(partition: str) -> int:
    return partition_number(partition, without=-1)
