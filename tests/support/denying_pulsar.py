"""A proxy before a real Pulsar that answers for it, as it does after its restart: no topic has a last message."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from types import TracebackType
from typing import Final

from bridge.pulsar.wire.protobuf import fields, number, text

__all__ = ["DenyingPulsar"]

_LOOKUP_RESPONSE: Final = 24
_LAST_MESSAGE_ID_RESPONSE: Final = 30
_PROXY_THROUGH_SERVICE_URL: Final = 8
_NONE: Final = number(1, 2**64 - 1) + number(2, 2**64 - 1)
"""A MessageIdData with ledger and entry -1."""


class DenyingPulsar:
    """Listens on a free loopback port; all but what is asked of a topic's end is the real broker's."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.service_url = f"pulsar://127.0.0.1:{self._listener.getsockname()[1]}"
        self.denied = 0
        self._open: list[socket.socket] = [self._listener]

    def __enter__(self) -> DenyingPulsar:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sock in self._open:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._open += (client, server)
                threading.Thread(target=self._requests, args=(client, server), daemon=True).start()
                threading.Thread(target=self._answers, args=(client, server), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65_536):
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def _answers(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError), server.makefile("rb") as stream:
            while head := stream.read(4):
                frame = stream.read(struct.unpack("!I", head)[0])
                size = struct.unpack("!I", frame[:4])[0]
                command = self._changed(frame[4 : 4 + size])
                rest = frame[4 + size :]
                client.sendall(struct.pack("!II", 4 + len(command) + len(rest), len(command)) + command + rest)
            client.shutdown(socket.SHUT_WR)

    def _changed(self, command: bytes) -> bytes:
        found = dict(fields(command))
        kind = found.get(1)
        body = found.get(kind) if isinstance(kind, int) else None
        if not isinstance(kind, int) or not isinstance(body, bytes):
            return command
        if kind == _LOOKUP_RESPONSE:  # so that the client comes to us for the topic as well
            return number(1, kind) + text(kind, body + number(_PROXY_THROUGH_SERVICE_URL, 1))
        if kind == _LAST_MESSAGE_ID_RESPONSE:
            self.denied += 1
            request = dict(fields(body))[2]
            assert isinstance(request, int)
            return number(1, kind) + text(kind, text(1, _NONE) + number(2, request))
        return command
