"""A TCP proxy that cuts its connections on request, so that a test causes a reconnect without killing a server."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from tests.support.waiting import patient

_BUFFER = 64 * 1024


class TcpProxy:
    """Listens on a free loopback port and forwards to ``host:port``."""

    def __init__(self, host: str, port: int, seen: Callable[[socket.socket, bytes], None] | None = None) -> None:
        """``seen`` gets what each client sends, on the proxy's thread."""
        self._target = (host, port)
        self._seen = seen
        self._near: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._lock = threading.Lock()
        self._ended = False
        self._frozen = False
        self._away = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="tcp-proxy", daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Close every connection, both sides, without a word."""
        with self._lock:
            for sock in list(self._pairs):
                self._drop(sock)

    def freeze(self) -> None:
        """Keep every connection open, new ones too, and forward nothing until ``thaw``."""
        self._frozen = True

    def thaw(self) -> None:
        """Forward again, what has waited first."""
        self._frozen = False

    @contextmanager
    def away(self) -> Iterator[None]:
        """While the block runs every connection is closed, old ones and new ones, as if the server were down."""
        self._away = True
        self.cut()
        try:
            yield
        finally:
            self._away = False

    def __enter__(self) -> TcpProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        socket.create_connection(("127.0.0.1", self.port)).close()
        self._thread.join(patient(10))
        self.cut()
        self._listener.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._ended:
            for key, _ in self._selector.select(0.2):
                with self._lock:
                    if key.fileobj is self._listener:
                        self._accept()
                    elif self._frozen:
                        time.sleep(0.01)  # readable all the time: the loop must not spin
                    elif key.fileobj in self._pairs:
                        self._forward(key.fileobj)  # type: ignore[arg-type]

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        if self._ended or self._away:
            near.close()
            return
        try:
            far = socket.create_connection(self._target)
        except OSError:  # no server listens: the caller sees a connection that ends at once
            near.close()
            return
        self.connections += 1
        self._near.add(near)
        for a, b in ((near, far), (far, near)):
            for side in (socket.SO_RCVBUF, socket.SO_SNDBUF):  # no store of megabytes between the two
                a.setsockopt(socket.SOL_SOCKET, side, _BUFFER)
            self._pairs[a] = b
            self._selector.register(a, selectors.EVENT_READ)

    def _forward(self, sock: socket.socket) -> None:
        try:
            data = sock.recv(65536)
            if data:
                if self._seen is not None and sock in self._near:
                    self._seen(sock, data)
                self._pairs[sock].sendall(data)
                return
        except OSError:
            pass  # the other side is gone: both are dropped
        self._drop(sock)

    def _drop(self, sock: socket.socket) -> None:
        other = self._pairs.pop(sock, None)
        if other is None:
            return
        self._pairs.pop(other, None)
        self._near -= {sock, other}
        for one in (sock, other):
            self._selector.unregister(one)
            one.close()
