"""Dials an MQTT broker, at once or in a thread of its own, because name lookup, connect and TLS handshake block."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from bridge.errors import ConfigError
from bridge.mqtt.buffered_socket import BufferedSocket

__all__ = ["DIAL_ERRORS", "Dialler"]

DIAL_ERRORS: Final = (OSError, ValueError, ConfigError)
"""What a dial raises if there is no connection."""


class Dialler:
    """Dials for one link, one attempt after the other."""

    def __init__(self, dial: Callable[[int], BufferedSocket], wake: Callable[[], None] | None = None) -> None:
        """``dial`` is called with the argument of ``Dialler.dial``: in a thread of its own if there is ``wake``, which is called
        when it ends.
        """
        self._dial = dial
        self._wake = wake
        # No executor: its threads would keep a process that ends waiting for a broker that does not answer.
        self._attempt: Future[BufferedSocket] | None = None

    @property
    def under_way(self) -> bool:
        """Whether an attempt has begun whose result was not returned."""
        return self._attempt is not None

    def dial(self, receive_maximum: int) -> BufferedSocket | None:
        """Return a socket on which CONNECT was sent, None while the attempt is under way: then call it again. Raises one of
        ``DIAL_ERRORS``.
        """
        if self._wake is None:
            return self._dial(receive_maximum)
        if self._attempt is None:
            self._attempt = Future()
            args = self._attempt, receive_maximum, self._wake
            threading.Thread(target=self._run, args=args, name="mqtt-dial", daemon=True).start()
        if not self._attempt.done():
            return None
        attempt, self._attempt = self._attempt, None
        return attempt.result()

    def _run(self, attempt: Future[BufferedSocket], receive_maximum: int, wake: Callable[[], None]) -> None:
        try:
            attempt.set_result(self._dial(receive_maximum))
        except Exception as e:  # noqa: BLE001 - raised by ``result``
            attempt.set_exception(e)
        if self._attempt is attempt:
            wake()

    def cancel(self) -> None:
        """End the attempt that is under way: its socket is closed when it is there."""
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.add_done_callback(_close)


def _close(attempt: Future[BufferedSocket]) -> None:
    if attempt.exception() is None:
        attempt.result().close()
