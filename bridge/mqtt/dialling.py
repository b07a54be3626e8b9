"""Dials an MQTT broker in a thread of its own, because name lookup, connect and TLS handshake block."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from bridge.errors import ConfigError
from bridge.mqtt.buffered_socket import BufferedSocket

__all__ = ["DIAL_ERRORS", "Dialling"]

DIAL_ERRORS: Final = (OSError, ValueError, ConfigError)
"""What a dial raises if there is no connection."""


class Dialling:
    """One attempt. All methods are called by one thread, not by the one that dials."""

    def __init__(self, dial: Callable[[], BufferedSocket], wake: Callable[[], None]) -> None:
        """``dial`` is called in a new thread, and then ``wake``."""
        self._dial = dial
        self._wake = wake
        self._lock = threading.Lock()
        self._cancelled = False
        self._sock: BufferedSocket | None = None
        self._error: Exception | None = None
        self.ended = False
        """Whether ``result`` has a result."""
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
        """Return the socket, once. Raises what the dial has raised, one of ``DIAL_ERRORS`` unless it is a defect."""
        if self._error is not None:
            raise self._error
        assert self._sock is not None
        return self._sock

    def cancel(self) -> None:
        """Close the socket, now or when it is there; ``wake`` is not called any more."""
        with self._lock:
            self._cancelled = True
            sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()
