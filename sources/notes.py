"""What a query says once, at its start: options that change nothing, and what the Spark at hand lacks."""

from __future__ import annotations

from collections.abc import Sequence

from bridge.loggers import get_logger

__all__ = ["say"]


def say(notes: Sequence[str], lacking: str | None) -> None:
    """Log the notes on the options, and as a warning what the query has to do without."""
    if not notes and lacking is None:
        return
    log = get_logger("source")
    if notes:
        log.info("options that change nothing", options=list(notes))
    if lacking is not None:
        log.warning(
            "run the query on Spark 4.2 where it needs what this one lacks",
            lacking=lacking,
        )
