"""The log: structlog's events as lines on stdout, as text or as JSON.

Tiers log with ``structlog.get_logger("ingest")``. A healthy process logs nothing above INFO. A WARNING names the action
to take. A repeated WARNING is shown a few times a minute, with the number of omitted ones. Secrets are masked, also in
texts of libraries and servers. Texts of devices and servers are escaped: an event is one line, and the lines of a
traceback below it are indented.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

import structlog

from bridge.display import accept_every_character, printable

if TYPE_CHECKING:
    from bridge.settings.log import LogSettings

__all__ = ["Repeats", "configure", "masked"]

_REPEATS: Final = 5
_WINDOW_S: Final = 60.0
_REMEMBERED: Final = 1000
_KEY: Final = 500

_CREDENTIALS = re.compile(r"(?<=://)([^/\s:@]*):[^/\s@]+@")
_BEARER = re.compile(r"(?i)\b(bearer|token:)\s*[\w.~+/=-]{8,}")
# Matches only at the begin of a run of its characters, so each run is searched once: devices choose some of the texts.
_JWT = re.compile(r"(?<![\w-])(?=[\w-]*?\beyJ[\w-]{4})[\w-]+\.[\w-]{4,}\.[\w-]*")
_SECRET_NAMES: Final = ("password", "token", "secret", "private_key", "authorization")


def masked(text: str) -> str:
    """Return a text without credentials: passwords in URLs, bearer tokens, JSON Web Tokens."""
    if "://" in text:
        text = _CREDENTIALS.sub(r"\1:***@", text)
    return _JWT.sub("***", _BEARER.sub(r"\1 ***", text))


class Repeats:
    """Selects the first few of equal events in each minute. The caller gives the time in seconds."""

    def __init__(self, shown: int = _REPEATS, window_s: float = _WINDOW_S, keys: int = _REMEMBERED) -> None:
        self._shown = shown
        self._window_s = window_s
        self._keys = keys
        self._seen: OrderedDict[object, tuple[float, int]] = OrderedDict()

    def take(self, key: object, now: float, shown: int | None = None) -> int | None:
        """Return how many events of ``key`` were left out before this one.

        Returns None if this one is left out too. ``shown`` is the number of events of this key in a window, if it is
        not the usual one.
        """
        most = self._shown if shown is None else shown
        since, count = self._seen.pop(key, (now, 0))
        left_out = 0
        if now - since >= self._window_s:
            left_out = max(0, count - most)
            since, count = now, 0
        self._seen[key] = (since, count + 1)
        if len(self._seen) > self._keys:
            self._seen.popitem(last=False)
        return left_out if count < most else None


class _Stdout:
    """Writes to the current ``sys.stdout``, so that redirection after the configuration works."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    def msg(self, message: str) -> None:
        sys.stdout.write(message + "\n")  # in one piece: several threads log
        sys.stdout.flush()

    log = debug = info = warning = warn = error = critical = fatal = failure = exception = msg


class _Handler(logging.Handler):
    """The standard library's log, in the form of ours."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            _Stdout().msg(self.format(record))
        except Exception:  # noqa: BLE001 the standard library handles every error of a record so
            self.handleError(record)


_SEVERAL_LINES: Final = ("exception", "stack")
_TRACEBACK: Final = 10_000  # characters of the begin, and of the end


def _show(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    for name, value in event.items():
        if value is not None and name.lower().endswith(_SECRET_NAMES):
            event[name] = "***"
        elif name in _SEVERAL_LINES:
            event[name] = _indented(masked(str(value)))
        else:
            event[name] = _shown(value)
    return event


def _shown(value: Any) -> Any:
    """Return a value with every text in it masked and printable."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, dict):
        return {_shown(name): _shown(one) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_shown(one) for one in value]
    return printable(masked(value if isinstance(value, str) else str(value)))


def _indented(text: str) -> str:
    if len(text) > 2 * _TRACEBACK:
        text = f"{text[:_TRACEBACK]}\n…\n{text[-_TRACEBACK:]}"
    return "\n".join("    " + printable(line) for line in text.split("\n"))


class _Limit:
    """Leaves out repeated WARNINGs and ERRORs about the same subject.

    An event with ``shown=1`` appears once a minute.
    """

    # Fields that identify the subject of an event; they do not vary between its repeats.
    _ABOUT: Final = ("link", "partition", "topic", "filter", "protocol", "subscription", "query")

    def __init__(self) -> None:
        self._repeats = Repeats()
        self._lock = threading.Lock()

    def __call__(self, logger: Any, level: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        shown = event.pop("shown", None)
        if level not in ("warning", "error"):
            return event
        # Devices choose some of these, so only their first characters count: this bounds the memory.
        about = tuple(str(event.get(name, ""))[:_KEY] for name in self._ABOUT)
        key = (getattr(logger, "name", None), level, str(event.get("event"))[:_KEY], about)
        with self._lock:
            left_out = self._repeats.take(key, time.monotonic(), shown)
        if left_out is None:
            raise structlog.DropEvent
        if left_out:
            event["left_out"] = left_out
        return event


def configure(settings: LogSettings) -> None:
    """Configure structlog and the standard library's logging for this process."""
    accept_every_character()
    level = logging.getLevelName(settings.level.upper())
    last: structlog.typing.Processor
    if settings.format == "json":
        last = structlog.processors.JSONRenderer(ensure_ascii=False)
        stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
    else:
        last = structlog.dev.ConsoleRenderer(
            colors=sys.stdout.isatty(),
            exception_formatter=structlog.dev.plain_traceback,  # rich's shows the values of variables
        )
        stamp = structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)
    shape: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.stdlib.add_logger_name,
        stamp,
        structlog.processors.format_exc_info,
        _show,
    ]
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, _Limit(), *shape, last],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=_Stdout,
        cache_logger_on_first_use=False,
    )
    # Third-party libraries: only events that need an action of an operator, in the same form.
    handler = _Handler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shape,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, last],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
