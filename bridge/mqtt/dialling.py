"""Dials an MQTT broker, at once or in a thread of its own, because name lookup, connect and TLS handshake block."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from bridge.errors import ConfigError
from bridge.mqtt.buffered_socket import BufferedSocket

__all__ = ["DIAL_ERRORS", "Dialler"]

DIAL_ERRORS: Final = (OSError, ValueError, ConfigError)
"""What a dial raises if there is no connection."""


class _Attempt:
    """A dial in a thread. All methods are called by another one."""

    def __init__(self, dial: Callable[[], BufferedSocket], wake: Callable[[], None]) -> None:
        self._dial = dial
        self._wake = wake
        self._lock = threading.Lock()
        self._cancelled = False
        self._sock: BufferedSocket | None = None
        self._error: Exception | None = None
        self.ended = False
        threading.Thread(target=self._run, name="mqtt-dial", daemon=True).start()

    def _run(self) -> None:
        sock: BufferedSocket | None = None
        try:
            sock = self._dial()
        except Exception as e:  # noqa: BLE001 - raised by ``result``
            self._error = e
        with self._lock:
            if not self._cancelled:
                self._sock, sock = sock, None
                self.ended = True
                self._wake()
        if sock is not None:
            sock.close()

    def result(self) -> BufferedSocket:
        if self._error is not None:
            raise self._error
        assert self._sock is not None
        return self._sock

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()


class Dialler:
    """Dials for one link, one attempt after the other."""

    def __init__(self, dial: Callable[[int], BufferedSocket], wake: Callable[[], None] | None = None) -> None:
        """``dial`` is called with the argument of ``Dialler.dial``: in a thread of its own if there is ``wake``, which is called
        when it ends.
        """
        self._dial = dial
        self._wake = wake
        self._attempt: _Attempt | None = None

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
            self._attempt = _Attempt(lambda: self._dial(receive_maximum), self._wake)
        if not self._attempt.ended:
            return None
        attempt, self._attempt = self._attempt, None
        return attempt.result()

    def cancel(self) -> None:
        """End the attempt that is under way: its socket is closed when it is there."""
        if self._attempt is not None:
            self._attempt.cancel()
            self._attempt = None
