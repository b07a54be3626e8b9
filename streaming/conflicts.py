"""Tries a write to a Delta table again when another writer's commit came in between.

Delta checks each commit against those since the write began, and refuses one that read what another has changed
meanwhile; nothing of a refused one is in the table. So what is tried again must read the table anew. Two queries on one
checkpoint (``DELTA_CONCURRENT_TRANSACTION``) are no such case: there the second must end.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeVar

import structlog
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from bridge.errors import TransientError

__all__ = ["is_conflict", "retrying"]

_CONFLICT: Final = re.compile(
    r"\[DELTA_(CONCURRENT_(APPEND|DELETE_DELETE|DELETE_READ|WRITE)|METADATA_CHANGED|PROTOCOL_CHANGED)\b"
)
_log = structlog.get_logger("stream")
T = TypeVar("T")


def is_conflict(error: BaseException) -> bool:
    """Whether Delta refused a commit because of another one, by the error's class in Spark's text."""
    return not isinstance(error, TransientError) and _CONFLICT.search(str(error)) is not None


def retrying(
    write: Callable[[], T],
    what: str,
    *,
    for_s: float = 120.0,
    longest_wait_s: float = 5.0,
    refused: Callable[[int], object] = lambda attempt: None,
) -> T:
    """Call ``write`` until no other writer comes in between, and return what it returns.

    ``refused`` is told the number of each attempt that was. Raises TransientError naming ``what`` when there was
    always one for ``for_s`` seconds; any other error of ``write`` goes through.
    """

    def told(state: RetryCallState) -> None:
        _log.info("another writer was first, trying again", table=what, attempt=state.attempt_number)
        refused(state.attempt_number)

    attempts = Retrying(
        retry=retry_if_exception(is_conflict),
        wait=wait_random_exponential(multiplier=0.1, max=longest_wait_s),
        stop=stop_after_delay(for_s),
        before_sleep=told,
        reraise=True,
    )
    try:
        return attempts(write)
    except Exception as e:
        if not is_conflict(e):
            raise
        raise TransientError(
            f"{what}: other writers were first for {for_s:g} s",
            remedy="try again when less is written to it, or while the jobs are stopped",
        ) from e
