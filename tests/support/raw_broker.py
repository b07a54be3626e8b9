"""An MQTT 5 broker by hand, which answers, refuses, closes or keeps silent as a test says; it forwards nothing."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final

from tests.support.mqtt_packets import Delivered, delivered, split
from tests.support.raw_mqtt import packet

__all__ = ["CLOSE", "SILENT", "RawBroker"]

CLOSE: Final = -1
SILENT: Final = -2
_CONNECT, _PUBLISH, _PUBREL, _SUBSCRIBE, _PING = 0x10, 0x30, 0x60, 0x80, 0xC0


class RawBroker:
    """Accepts every connection. ``answer`` returns the reason code of PUBACK or PUBREC for a PUBLISH, or one of the above.
    ``granted`` are the properties of CONNACK. ``forwards`` are packets that follow each SUBACK, and ``closes``
    says how many connections are closed right after CONNACK.
    """

    def __init__(
        self,
        answer: Callable[[Delivered], int] = lambda _: 0,
        granted: bytes = b"",
        *,
        forwards: bytes = b"",
        closes: int = 0,
    ) -> None:
        self._answer = answer
        self._forwards = forwards
        self._closes = closes
        self.acked: list[tuple[int, int]] = []
        """Type and packet identifier of each PUBACK, PUBREC and PUBCOMP, in order."""
        self._connack = packet(0x20, b"\0\0" + bytes([len(granted)]) + granted)
        self._server = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.port = int(self._server.getsockname()[1])
        self.connections = 0
        self.came: list[Delivered] = []
        """Every PUBLISH, in order, taken or not."""
        self.sizes: list[int] = []
        """Their packets' lengths in bytes."""
        self.taken: list[Delivered] = []
        """Those that were confirmed with success."""
        self.released: list[int] = []
        """Packet identifiers of PUBREL."""

    def __enter__(self) -> RawBroker:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self.kill()

    def kill(self) -> None:
        """Close every connection, as a broker that dies does."""
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                peer, _ = self._server.accept()
                self._open.append(peer)
                self.connections += 1
                threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        received = bytearray()
        with peer, suppress(OSError):
            while data := peer.recv(65536):
                received += data
                for first, body in split(received):
                    reply = self._reply(first, body)
                    if reply is None:
                        return
                    peer.sendall(reply)
                    if first & 0xF0 == _CONNECT and self.connections <= self._closes:
                        return

    def _reply(self, first: int, body: bytes) -> bytes | None:
        kind = first & 0xF0
        if kind == _CONNECT:
            return self._connack
        if kind == _SUBSCRIBE:
            return packet(0x90, body[:2] + b"\0" + b"\1" * _filters(body)) + self._forwards
        if kind in (0x40, 0x50, 0x70):
            self.acked.append((kind >> 4, int.from_bytes(body[:2], "big")))
            return packet(0x62, body[:2]) if kind == 0x50 else b""
        if kind == 0xA0:
            return packet(0xB0, body[:2] + b"\0\0")
        if kind == _PING:
            return b"\xd0\0"
        if kind == _PUBREL:
            self.released.append(int.from_bytes(body[:2], "big"))
            return packet(0x70, body[:2])
        if kind != _PUBLISH:
            return None  # DISCONNECT
        one = delivered("5", first, body)
        self.came.append(one)
        self.sizes.append(len(packet(first, body)))
        reason = self._answer(one)
        if reason in (CLOSE, SILENT):
            return None if reason == CLOSE else b""
        if reason < 0x80:
            self.taken.append(one)
        if not first & 0x06:
            return b""
        return packet(0x50 if first & 0x04 else 0x40, struct.pack("!HB", one.mid, reason))


def _filters(body: bytes) -> int:
    """Return how many filters a SUBSCRIBE of MQTT 5 without properties has."""
    at, count = 3, 0
    while at < len(body):
        at += 2 + int.from_bytes(body[at : at + 2], "big") + 1
        count += 1
    return count
