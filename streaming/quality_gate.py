"""What is done when too many of silver's rows are bad: a WARNING and a metric, or the end of the query.

Whether they are too many is decided by ``streaming.bad_share``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import structlog

from bridge.errors import TerminalError
from streaming.bad_share import BadShare, Judged

if TYPE_CHECKING:
    from bridge.settings import StreamingSettings
    from bridge.silver_metrics import SilverMetrics

__all__ = ["BadShareGate", "told"]

_NAMED: Final = 3
_log = structlog.get_logger("stream")


class BadShareGate:
    """Sees every batch of silver before it is written. With ``on_bad_share: stop`` it is an error that lets none pass
    which would put the window over the limit; else one WARNING each time the window goes over it.
    """

    def __init__(
        self,
        settings: StreamingSettings,
        metrics: SilverMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._window = BadShare(
            settings.bad_share_limit, settings.bad_share_window_s, settings.bad_share_min_rows
        )
        self._told = False
        if metrics is not None:
            metrics.bad_share_limit.set(settings.bad_share_limit)
            metrics.bad_share.set_function(lambda: self._window.share(clock()))

    def __call__(self, batch_id: int, good: int, bad: int, by_rule: Callable[[], Mapping[str, int]]) -> None:
        """Triggered by silver when a batch is judged and nothing of it written, on the query's thread.

        Raises TerminalError when the query must stop; nothing of the batch is written then.
        """
        now = self._clock()
        self._window.saw(batch_id, now, good, bad)
        over = self._window.over(now)
        if over and self._settings.on_bad_share == "stop":
            raise TerminalError(
                f"silver stopped before batch {batch_id}: "
                f"{told(self._window.window(now), by_rule(), self._settings)}",
                remedy="correct the decoder or the rule and start again, which judges the batch anew; or raise "
                "streaming.bad_share_limit, or set streaming.on_bad_share=alert to hold the bad ones in quarantine",
            )
        if over and not self._told:
            _log.warning(
                "too many bad rows; see pulsebridge quarantine list",
                why=told(self._window.window(now), by_rule(), self._settings),
            )
        self._told = over
        if self._metrics is not None:
            self._metrics.judged.labels("passed").inc(good)
            self._metrics.judged.labels("held").inc(bad)


def told(window: Judged, rules: Mapping[str, int], settings: StreamingSettings) -> str:
    """Return in words what is over the limit, with the rules that most rows of the last batch failed."""
    named = [f"{name} {count}" for name, count in list(rules.items())[:_NAMED]]
    if len(rules) > _NAMED:
        named.append("…")
    return (
        f"{window.share:.1%} of {window.rows} rows within {settings.bad_share_window_s:g} s failed a rule "
        f"({', '.join(named)}), the limit is {settings.bad_share_limit:.1%}"
    )
