"""Loggers for Spark's Python processes, which import structlog with their first event.

The import adds a quarter of a second to the start of each query, because structlog imports rich if it is installed.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bridge.settings.log import LogSettings

__all__ = ["Logger", "configure_later", "get_logger"]

_configure: list[Callable[[], None]] = []
"""The configuration to apply once, before the first event."""
_lock = threading.Lock()


class Logger:
    """A structlog logger, created at its first use."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, level: str) -> Any:
        import structlog

        _configure_now()
        return getattr(structlog.get_logger(self._name), level)

    def debug(self, event: str, **fields: Any) -> None:
        """Log at DEBUG. A process that shows DEBUG has configured its log, so it has imported structlog."""
        structlog = sys.modules.get("structlog")
        if structlog is not None and structlog.is_configured():
            self.__getattr__("debug")(event, **fields)


def get_logger(name: str) -> Logger:
    """Return the logger of a tier."""
    return Logger(name)


def configure_later(settings: LogSettings) -> None:
    """Configure the log of this process before its first event.

    The event may be ours or a library's. A log that is configured by then stays as it is. Configures at once if the
    level is DEBUG or structlog is imported already.
    """

    def configure() -> None:
        import structlog

        if not structlog.is_configured():
            from bridge.logs import configure

            configure(settings)

    if "structlog" in sys.modules or settings.level.upper() == "DEBUG":
        configure()
        return
    _configure[:] = [configure]
    logging.getLogger().addHandler(_First(logging.WARNING))


def _configure_now() -> None:
    with _lock:  # an event of another thread waits for the configuration
        while _configure:
            _configure.pop()()


class _First(logging.Handler):
    """Configures the log at the first event of a library, and logs that event as later ones."""

    def emit(self, record: logging.LogRecord) -> None:
        logging.getLogger().removeHandler(self)
        _configure_now()
        logging.getLogger(record.name).handle(record)
