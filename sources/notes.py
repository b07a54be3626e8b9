"""Logs, once for each query, options without effect and features that Spark lacks."""

from __future__ import annotations

from collections.abc import Sequence

from bridge.loggers import get_logger

__all__ = ["log_notes"]


def log_notes(notes: Sequence[str], lacking: str | None) -> None:
    """Log the notes on the options and, as a warning, the missing features."""
    if not notes and lacking is None:
        return
    log = get_logger("source")
    if notes:
        log.info("options have no effect", options=list(notes))
    if lacking is not None:
        log.warning(
            "this Spark lacks features. Action: if the query needs them, run it on Spark 4.2",
            lacking=lacking,
        )
