"""Ownership of one partition: a session after another, for as long as the process runs, in a thread of its own.

It decides what follows the end of a session: a partition that went to another process is waited for again, a
Pulsar that is away is tried again, and so is an error that nobody expected, which is logged as a defect: what one
message provoked must not end the other partitions. Only an error that says that somebody has to change something
(TerminalError) ends the process. The session itself is in ``session``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import structlog

from bridge.collector import let_go
from bridge.errors import (
    ContractError,
    FencedError,
    PulsebridgeError,
    RefusedError,
    TerminalError,
    TerminatedError,
    TransientError,
)
from bridge.health import Part
from bridge.push.groups.payloads import Payloads
from bridge.push.metrics import PartitionMetrics
from bridge.push.rewriting import CursorsAged, CursorsForgotten
from bridge.push.session import Session
from bridge.settings import Settings

__all__ = ["PartitionOwner"]

log = structlog.get_logger("push")

_RETRY_S: Final = (0.2, 5.0)


def _ends(error: Exception, worked: bool) -> bool:
    """Whether an error of a session ends the process; ``worked``: a session of this process has worked before."""
    if isinstance(error, TerminatedError) or (isinstance(error, RefusedError) and not worked):
        return True
    return isinstance(error, TerminalError) and not isinstance(error, (RefusedError, ContractError))


class PartitionOwner:
    """Owns one partition whenever Pulsar lets it, until it is stopped."""

    def __init__(
        self,
        settings: Settings,
        partition: int,
        metrics: PartitionMetrics,
        part: Part,
        failed: Callable[[BaseException], None],
        payloads: Payloads,
        trace: str = "",
    ) -> None:
        self._settings = settings
        self._payloads = payloads
        self.partition = partition
        self._metrics = metrics
        self._part = part
        self._failed = failed
        self._trace = trace
        self._stopping = threading.Event()
        self._session: Session | None = None
        self._thread = threading.Thread(target=self._run, name=f"push-{partition}", daemon=True)

    def start(self) -> None:
        """Start the partition's thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ask for a clean end: push nothing new, wait for what is under way, close."""
        self._stopping.set()
        session = self._session
        if session is not None:
            session.wake()

    def cursors_forgotten(self) -> None:
        """Have the cursors written again that Pulsar has lost. From any thread."""
        session = self._session
        if session is not None:
            session.post(CursorsForgotten())

    def cursors_aged(self) -> bool:
        """Have what stands in the cursors partition written once more, unhurriedly. From any thread; returns whether it
        is ours to do.
        """
        session = self._session
        if session is None or not session.owns:
            return False
        session.post(CursorsAged())
        return True

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def _run(self) -> None:
        try:
            self._own_for_ever()
        except BaseException as e:
            self._part.failed(str(e))
            self._failed(e)
            if not isinstance(e, PulsebridgeError):
                raise

    def _own_for_ever(self) -> None:
        wait = _RETRY_S[0]
        worked = False
        while not self._stopping.is_set():
            held_much = self._session is not None and self._session.worked
            session = self._session = Session(
                self._settings,
                self.partition,
                self._metrics,
                self._part,
                self._stopping,
                self._payloads,
                self._trace,
            )
            if held_much:
                let_go()
            try:
                session.run()
            except FencedError as e:
                self._metrics.all.lost.inc()
                self._part.stands_by("another process owns it")
                log.info("partition went to another process", partition=self.partition, why=str(e))
            except Exception as e:
                worked = worked or session.worked
                if _ends(e, worked):
                    raise
                # What was right once may be so again: a token is rotated, a right given back, a topic made anew.
                self._metrics.all.lost.inc()
                self._part.waits(str(e))
                if isinstance(e, (TransientError, RefusedError)):
                    log.warning(
                        "partition is tried again; see that Pulsar is up and lets us in",
                        partition=self.partition,
                        why=str(e),
                    )
                else:
                    log.exception(
                        "an unexpected error ended this partition's session, it is tried again; please report it",
                        partition=self.partition,
                    )
                self._stopping.wait(wait)
                wait = min(2 * wait, _RETRY_S[1])
                continue
            wait = _RETRY_S[0]
            worked = worked or session.worked
