"""The log: structlog's events as lines on stdout, for people or as JSON for a collector.

Tiers log with ``structlog.get_logger("ingest")``. Healthy running says nothing above INFO, and a WARNING names the
action to take.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

from bridge.settings.log import LogSettings

__all__ = ["configure"]


class _Stdout:
    """Writes to what ``sys.stdout`` is at the time, so that redirection after the configuration works."""

    def __init__(self, *name: Any) -> None:
        self.name = str(name[0]) if name else None

    def msg(self, message: str) -> None:
        sys.stdout.write(message + "\n")
        sys.stdout.flush()

    log = debug = info = warning = warn = error = critical = fatal = failure = exception = msg


def _name(logger: Any, _: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    name = getattr(logger, "name", None)
    if name:
        event["logger"] = name
    return event


def configure(settings: LogSettings) -> None:
    """Configure structlog and the standard library's logging for this process."""
    level = logging.getLevelName(settings.level.upper())
    last: structlog.typing.Processor
    if settings.format == "json":
        last = structlog.processors.JSONRenderer()
        stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
    else:
        last = structlog.dev.ConsoleRenderer(colors=sys.stdout.isatty())
        stamp = structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            _name,
            stamp,
            structlog.processors.format_exc_info if settings.format == "json" else _keep,
            last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=_Stdout,
        cache_logger_on_first_use=False,
    )
    # Third-party libraries: only what a person has to act on.
    logging.basicConfig(
        stream=sys.stdout, level=logging.WARNING, format="%(levelname)s %(name)s %(message)s", force=True
    )


def _keep(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return event
