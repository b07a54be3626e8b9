"""Waits for sockets, a wake-up from another thread, or a time-out."""

from __future__ import annotations

import selectors
import socket
from contextlib import suppress
from typing import Protocol

__all__ = ["Poller"]


class _HasFile(Protocol):
    def fileno(self) -> int: ...


class Poller:
    """Waits for one socket, or for all that ``watch`` was called with. Only ``wake`` is called from other threads."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake_r, self._wake_w = socket.socketpair()
        self._wake_r.setblocking(False)
        self._wake_w.setblocking(False)
        self._selector.register(self._wake_r, selectors.EVENT_READ)
        self._woken = False

    def wake(self) -> None:
        """End the present wait, or the next one, at once."""
        if not self._woken:  # the loop sees all changes before this call after the wait
            self._woken = True
            with suppress(OSError):  # the pipe is full of wake-ups, or the link is closed
                self._wake_w.send(b"\0")

    def wait(self, sock: _HasFile | None, timeout: float, *, read: bool, write: bool) -> bool:
        """Wait up to ``timeout`` seconds until ``sock`` is ready, or a wake-up. Returns whether it can be read."""
        if sock is not None:
            self.watch(sock, read=read, write=write)
        return bool(self.wait_all(timeout))

    def wait_all(self, timeout: float) -> set[int]:
        """Wait up to ``timeout`` seconds until a watched socket is ready, or a wake-up. Returns the descriptors of those that can
        be read.
        """
        readable = set()
        for key, events in self._selector.select(timeout):
            if key.fileobj is not self._wake_r:
                if events & selectors.EVENT_READ:
                    readable.add(key.fd)
                continue
            with suppress(BlockingIOError):
                self._wake_r.recv(65536)  # if more bytes are in the pipe, the next wait returns at once
            # Not before the pipe is empty: recv would also read a byte that is sent in between. Then the flag would
            # stay set without a byte in the pipe. The loop sees the changes of a thread that finds the flag set.
            self._woken = False
        return readable

    def watch(self, sock: _HasFile, *, read: bool, write: bool) -> None:
        """Have the next waits end when the socket can be read or written, as wanted."""
        wanted = read * selectors.EVENT_READ | write * selectors.EVENT_WRITE
        keys = self._selector.get_map()
        fd = sock.fileno()
        known = keys.get(fd)
        if known is None:
            if wanted:
                self._selector.register(fd, wanted)
        elif not wanted:
            self._selector.unregister(fd)
        elif known.events != wanted:
            self._selector.modify(fd, wanted)

    def forget(self, sock: _HasFile) -> None:
        """Stop watching a socket; call this before the close. A closed socket is already unregistered."""
        fd = sock.fileno()
        if fd >= 0 and fd in self._selector.get_map():
            self._selector.unregister(fd)

    def close(self) -> None:
        """Free the wake-up pipe and the selector."""
        self._selector.close()
        self._wake_r.close()
        self._wake_w.close()
