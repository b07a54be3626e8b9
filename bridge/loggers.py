"""Loggers of the modules that Spark's Python processes import: structlog is imported with their first event.

With rich, which it imports where that is installed, it takes a quarter of a second of the start of each query.
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
"""What is still to be done before the first event, once."""
_lock = threading.Lock()


class Logger:
    """A structlog logger, made when it is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, level: str) -> Any:
        import structlog

        _configure_now()
        return getattr(structlog.get_logger(self._name), level)

    def debug(self, event: str, **fields: Any) -> None:
        """Log at DEBUG. A process that shows it has configured its log, and so imported structlog."""
        if "structlog" in sys.modules:
            self.__getattr__("debug")(event, **fields)


def get_logger(name: str) -> Logger:
    """Return the logger of a tier."""
    return Logger(name)


def configure_later(settings: LogSettings) -> None:
    """Configure the log of this process before its first event, ours or a library's, unless it is configured by then.

    At once where DEBUG is to be shown, or where structlog is imported already.
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
    with _lock:  # another thread's event waits until its form is known
        while _configure:
            _configure.pop()()


class _First(logging.Handler):
    """Has the log configured by the first event of a library, which is then logged as all later ones."""

    def emit(self, record: logging.LogRecord) -> None:
        logging.getLogger().removeHandler(self)
        _configure_now()
        logging.getLogger(record.name).handle(record)
