"""The protocol ``line``: a message a line, ``id topic base64``, answered by ``id OK``, ``DEAD``, ``REFUSED`` or ``BUSY``.

``? device seconds [position]`` fetches the next command, and confirms the one that the device has had; it is answered by
``? position repeat base64``, or ``? NONE``, ``? TAKEN`` or ``? BUSY``. ``! device position base64`` confirms a command with
an answer. A device sends one line at a time. What is no such line, or longer than ``LONGEST``, ends its connection.
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
from bridge.protocols.awaited_commands import AwaitedCommands
from bridge.protocols.commands import CommandOutcome
from bridge.settings import Settings
from bridge.settings.fetch import FetchSettings

LONGEST: Final = 1024 * 1024
"""Bytes of a line."""


class LineConnection(asyncio.Protocol):
    def __init__(self, handler: LineHandler) -> None:
        self.handler = handler
        self.buffer = b""
        self.asked: set[asyncio.Future[CommandOutcome]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.handler.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.handler.connections.discard(self)
        for asked in list(self.asked):
            asked.cancel()

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
        name, topic, payload, *rest = (*line.decode().split(" "), "")
        commands = self.handler.commands
        if commands is not None and name in ("?", "!"):
            if commands.topics(topic) is None:
                raise ValueError(f"no device is called {topic}")
            if name == "?":
                asked = commands.fetch(topic, rest[0], float(payload))
            else:
                asked = commands.confirm(topic, payload, base64.b64decode(rest[0]), failed=False)
            self.asked.add(asked)
            asked.add_done_callback(lambda f: self.tell(name, f))
            return
        message = Message(topic, base64.b64decode(payload), 1, False, False, 0, None)
        try:
            future = self.handler.intake.take(message)
        except SaturatedError:
            self.say(f"{name} BUSY")
            return
        future.add_done_callback(lambda f: self.say(f"{name} {self.word(f.result())}"))

    def tell(self, name: str, future: asyncio.Future[CommandOutcome]) -> None:
        self.asked.discard(future)
        if future.cancelled():
            return
        outcome = future.result()
        if outcome.command is not None:
            command = outcome.command
            payload = base64.b64encode(command.payload).decode()
            self.say(f"{name} {command.position} {int(command.repeat)} {payload}")
        elif outcome.superseded:
            self.say(f"{name} TAKEN")
        elif outcome.unavailable:
            self.say(f"{name} BUSY")
        else:
            self.say(f"{name} OK" if outcome.confirmed else f"{name} NONE")

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
        self.commands: AwaitedCommands | None = None

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
        push = self.service.settings.push
        self.intake = AwaitedIntake(self.service, link="line", protocol="line", limit=self.limit)
        if push.presence.rules:
            fetch = FetchSettings(topics=(push.groups.topic,), client_id="line-device", absent_after="1s")
            self.commands = AwaitedCommands(self.service, fetch)

    def listeners(self) -> list[tuple[Address, Acceptor]]:
        return [(Address("127.0.0.1", 0), Acceptor(lambda: LineConnection(self)))]

    def readiness(self) -> Mapping[str, bool]:
        return {"line": "start" in self.phases}

    def close(self) -> None:
        self.phases.append("close")
        if self.commands is not None:
            self.commands.stop(self.service.drain_deadline)
        if hasattr(self, "intake"):
            asyncio.run_coroutine_threadsafe(self.drain(), self.service.loop).result()
        if self.commands is not None:
            self.commands.join()

    async def drain(self) -> None:
        await self.intake.drain(self.service.drain_deadline)
        for connection in list(self.connections):
            connection.transport.close()
