"""The protocol ``line``: a message a line, ``id topic base64``, answered by ``id OK``, ``DEAD``, ``REFUSED`` or ``BUSY``.

A device sends one message at a time. What is no such line, or longer than ``LONGEST``, ends its connection.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from typing import Final

from bridge.protocols import (
    Acceptor,
    Address,
    AwaitedIntake,
    Message,
    Outcome,
    ProtocolHandler,
    SaturatedError,
    Service,
)
from bridge.settings import Settings

LONGEST: Final = 1024 * 1024
"""Bytes of a line."""


class LineConnection(asyncio.Protocol):
    def __init__(self, handler: LineHandler) -> None:
        self.handler = handler
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.handler.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.handler.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        try:
            for line in lines:
                self.answer(line)
        except ValueError:
            self.transport.abort()
        if len(self.buffer) > LONGEST:
            self.transport.abort()

    def answer(self, line: bytes) -> None:
        name, topic, payload = line.decode().split(" ")
        message = Message(topic, base64.b64decode(payload), 1, False, False, 0, None)
        try:
            future = self.handler.intake.take(message)
        except SaturatedError:
            self.say(f"{name} BUSY")
            return
        future.add_done_callback(lambda f: self.say(f"{name} {self.word(f.result())}"))

    def word(self, outcome: Outcome) -> str:
        if outcome.unknown:
            return "BUSY"
        if outcome.left_out is not None:
            return "REFUSED"
        return "OK" if outcome.dead_letter is None else "DEAD"

    def say(self, text: str) -> None:
        self.transport.write(text.encode() + b"\n")


class LineHandler(ProtocolHandler):
    limit = 20

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.connections: set[LineConnection] = set()

    @property
    def protocol_name(self) -> str:
        return "line"

    def initialize(self, settings: Settings) -> None:
        self.phases.append("initialize")

    def protocol_data_to_advertise(self) -> str:
        self.phases.append("advertise")
        return json.dumps({"lines": True})

    def start(self, service: Service) -> None:
        self.phases.append("start")
        self.service = service
        asyncio.run_coroutine_threadsafe(self.open(), service.loop).result()

    async def open(self) -> None:
        self.intake = AwaitedIntake(self.service, link="line", protocol="line", limit=self.limit)

    def listeners(self) -> Mapping[Address, Acceptor]:
        return {Address("127.0.0.1", 0): Acceptor(lambda: LineConnection(self))}

    def readiness(self) -> Mapping[str, bool]:
        return {"line": "start" in self.phases}

    def close(self) -> None:
        self.phases.append("close")
        if hasattr(self, "intake"):
            asyncio.run_coroutine_threadsafe(self.drain(), self.service.loop).result()

    async def drain(self) -> None:
        await self.intake.drain(self.service.drain_deadline)
        for connection in list(self.connections):
            connection.transport.close()
