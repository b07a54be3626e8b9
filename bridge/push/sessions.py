"""Sessions, one after another: in each a process waits for an ownership, and works until it loses it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import structlog

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

__all__ = ["Sessions", "wait_for"]

log = structlog.get_logger("push")

_RETRY_S: Final = (0.2, 5.0)
_TRY_S: Final = 0.2  # Pulsar answers at once that another process is the owner


class Sessions:
    """Runs one session after another in a thread of its own, until it is stopped.

    After a session ends it decides what follows. If another process is the owner, the next session waits for it; if Pulsar
    is unreachable, it tries again; so it does after an unexpected error, which it logs as a defect: one message must not end
    the other sessions of the process. Only an error that a person has to fix (TerminalError) ends the process.
    """

    def __init__(
        self,
        what: str,
        session: Callable[[], None],
        part: Part,
        failed: Callable[[BaseException], None],
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        """``what`` names in the log what a session owns. ``session`` runs one on the thread; ``lost`` is called there after an
        error of one, ``failed`` with the error that ends the process.
        """
        self._what = what
        self._session = session
        self._part = part
        self._failed = failed
        self._lost = lost
        self.stopping = threading.Event()
        self.worked = False
        """A session of this process has become the owner. Set by ``session``."""
        thread = threading.Thread(target=self._run, name=f"push-{what}".replace(" ", "-"), daemon=True)
        self.start, self.join = thread.start, thread.join

    def _run(self) -> None:
        try:
            self._run_sessions()
        except BaseException as e:
            self._part.failed(str(e))
            self._failed(e)
            if not isinstance(e, PulsebridgeError):
                raise

    def _run_sessions(self) -> None:
        wait = _RETRY_S[0]
        while not self.stopping.is_set():
            try:
                self._session()
                wait = _RETRY_S[0]
            except FencedError as e:
                wait = _RETRY_S[0]
                self._lost()
                self._part.stands_by("another process is the owner")
                log.info(f"{self._what} went to another process", why=str(e))
            except Exception as e:
                if self._ends_process(e):
                    raise
                # It may succeed later: a token is rotated, a right granted, a topic re-created.
                self._lost()
                self._part.waits(str(e))
                self._log_retry(e)
                self.stopping.wait(wait)
                wait = min(2 * wait, _RETRY_S[1])

    def _ends_process(self, error: Exception) -> bool:
        if isinstance(error, TerminatedError) or (isinstance(error, RefusedError) and not self.worked):
            return True
        return isinstance(error, TerminalError) and not isinstance(error, (RefusedError, ContractError))

    def _log_retry(self, error: Exception) -> None:
        if isinstance(error, (TransientError, RefusedError)):
            action = "see that Pulsar is up and accepts push"
            log.warning(f"push lost {self._what} and tries again. Action: {action}", why=str(error))
        else:
            log.exception(
                f"an unexpected error ended the session of {self._what}, and push tries again. Action: report it"
            )


def wait_for(
    attempt: Callable[[], object],
    stopping: threading.Event,
    part: Part,
    what: str,
    wanted: Callable[[], bool] = lambda: True,
) -> bool:
    """Call ``attempt``, while it is ``wanted``, until it is not fenced off, and Pulsar is there. Returns False when the
    session stops before.

    A standby and a Pulsar that cannot be reached are two states of ``part``; ``what`` names in the log what is waited for
    (H55).
    """
    part.stands_by("another process owns it")
    while not stopping.is_set():
        try:
            if wanted():
                attempt()
                return True
        except FencedError as e:
            part.stands_by("another process owns it")
            log.debug("standby", why=str(e))
        except TransientError as e:
            part.waits(str(e))
            log.warning(
                f"push cannot reach the owner of {what} in Pulsar, and tries again. Action: see that the brokers run, and "
                "that this machine reaches them (a proxy needs brokerProxyAllowedTargetPorts)",
                why=str(e),
                shown=1,
            )
        stopping.wait(_TRY_S)
    return False
