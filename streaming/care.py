"""One at a time of what rewrites the tables of a root: a rebuild, a forgetting, a replay of quarantine.

What one takes out, another that began before must not bring back. The running queries are not concerned: they go on,
and what they add meanwhile is dealt with by each of the three.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from bridge.errors import TerminalError
from streaming.checkpoints import CheckpointLock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from streaming.standing import Commit

__all__ = ["FORGET", "REBUILD", "REPLAY", "alone", "is_care", "is_streamed", "marked"]

REBUILD: Final = "tables rebuild"
FORGET: Final = "tables forget"
REPLAY: Final = "quarantine replay"
_MARK: Final = "pulsebridge care"
_USER_METADATA: Final = "spark.databricks.delta.commitInfo.userMetadata"
_PATIENCE_S: Final = 3.0
"""How long to wait for the other, in seconds: the JVM of one that was killed may need a moment to end."""


class _CareLock(CheckpointLock):
    """Freed by the kernel when its holder's JVM ends; nothing is locked on an object store."""

    def _refused(self, holder: str) -> TerminalError:
        return TerminalError(
            f"another change of these tables runs: {holder}",
            remedy="let it end (or stop it: the next run does what is left), then run this again",
        )


@contextmanager
def alone(spark: SparkSession, root: str, what: str) -> Iterator[None]:
    """Hold the tables of a root while ``what`` is done. Raises TerminalError naming who holds them."""
    lock = _CareLock(spark, f"{root}/checkpoints/tables", by=what)
    lock.acquire(_PATIENCE_S)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def marked(spark: SparkSession) -> Iterator[None]:
    """Have what is committed meanwhile carry our mark in Delta's log: streams were not meant to see it."""
    spark.conf.set(_USER_METADATA, _MARK)
    try:
        yield
    finally:
        spark.conf.unset(_USER_METADATA)


def is_care(commit: Commit) -> bool:
    """Whether a commit is none of a query's: it takes rows away, or is marked."""
    return commit.mark == _MARK or commit.operation in ("DELETE", "UPDATE")


def is_streamed(commit: Commit) -> bool:
    """Whether a query brought readings by a commit."""
    return commit.mark != _MARK and commit.brings_rows
