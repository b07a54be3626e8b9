"""The requests by which a device fetches and confirms its commands, and their answers.

``GET /devices/{device}/commands?wait=30&after=POSITION`` returns the next command: its payload is the body, the rest is in
headers. ``POST /devices/{device}/commands/{position}?failed=false`` confirms it; the body is the device's answer. A table of
the README has the statuses.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from bridge.contract.tagged_positions import read_position
from bridge.errors import ContractError
from bridge.http.access import Filters
from bridge.http.app import Answer, Request, busy
from bridge.http.requests import DEVICES_PREFIX, InvalidRequestError, query_of, text_of
from bridge.protocols.awaited_commands import AwaitedCommands
from bridge.protocols.commands import CommandOutcome, DeviceCommand
from bridge.settings import Settings

__all__ = ["CommandRequests"]

_LEVEL: Final = b"commands"
_WAIT_S: Final = 30
_MAX_WAIT_S: Final = 60
_SPARE_S: Final = 5.0
_UNKNOWN: Final = "no command at this position waits for a confirmation; fetch: if it is not settled, it comes again"


def _answer(result: CommandOutcome | None, *, fetches: bool) -> Answer:
    if result is None:
        return busy("the MQTT broker did not answer in time")
    if result.unavailable:
        return busy(f"{result.unavailable}; what is not confirmed comes again")
    if result.superseded:
        return Answer(409, {"message": "a newer request of this device took the place of this one"})
    if result.command is not None:
        return _shown(result.command)
    if result.confirmed:
        return Answer(200, {"message": "OK"})
    return Answer(204, {}) if fetches else Answer(404, {"message": _UNKNOWN})


def _shown(command: DeviceCommand) -> Answer:
    headers = [
        ("Command-Position", command.position),
        ("Command-Id", quote(command.command_id, safe="!#$&'()*+,/:;=?@[]~")),
        ("Command-Repeat", "true" if command.repeat else "false"),
        ("Command-Topic", quote(command.topic)),
    ]
    if command.expiry_s is not None:
        headers.append(("Command-Expiry", str(command.expiry_s)))
    return Answer(200, command.payload, (*headers, ("Cache-Control", "no-store")))


class CommandRequests:
    """Reads the requests for commands."""

    def __init__(self, settings: Settings, commands: AwaitedCommands) -> None:
        self._settings = settings
        self._commands = commands

    def request(self, method: bytes, path: bytes, query: bytes, granted: Iterable[Filters]) -> Request | Answer:
        """Return what a head asks for, or why it is refused. Raises InvalidRequestError."""
        levels = [unquote_to_bytes(level) for level in path.removeprefix(DEVICES_PREFIX).split(b"/")]
        if len(levels) not in (2, 3) or levels[1] != _LEVEL:
            return Answer(404, {"message": "fetch from /devices/{device}/commands"})
        device = text_of(levels[0], "the device")
        topics = self._commands.topics(device)
        if topics is None:
            raise InvalidRequestError("this is not a name of a device")
        if not all(any(one.covers(topic) for one in filters) for filters in granted for topic in topics):
            return Answer(403, {"message": "this token or certificate does not allow the commands of this device"})
        wanted = "GET" if len(levels) == 2 else "POST"
        if method.decode() != wanted:
            return Answer(405, {"message": "fetch with GET, confirm with POST"}, (("Allow", wanted),))
        if len(levels) == 2:
            return self._fetching(device, query)
        return self._confirming(device, _position(text_of(levels[2], "the position")), query)

    def _fetching(self, device: str, query: bytes) -> Request:
        asked = query_of(query, ("wait", "after"))
        text = asked.get("wait") or str(_WAIT_S)
        wait_s = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
        if not 1 <= wait_s <= _MAX_WAIT_S:
            raise InvalidRequestError(f"wait is a number of seconds from 1 to {_MAX_WAIT_S}")
        after = _position(asked["after"]) if asked.get("after") else ""
        answer = partial(_answer, fetches=True)
        return Request(lambda _: self._commands.fetch(device, after, wait_s), answer, wait_s + _SPARE_S, 0, waits=True)

    def _confirming(self, device: str, position: str, query: bytes) -> Request:
        failed = query_of(query, ("failed",)).get("failed", "false")
        if failed not in ("true", "false"):
            raise InvalidRequestError("failed is true or false")
        if failed == "true" and self._settings.push.confirm != "device":
            raise InvalidRequestError(
                "with push.confirm: broker no command is sent again because it failed: confirm it"
            )

        begin = partial(self._commands.confirm, device, position, failed=failed == "true")
        limits = self._settings.http.limits
        return Request(begin, partial(_answer, fetches=False), limits.store_timeout, limits.body_size)


def _position(text: str) -> str:
    try:
        read_position(text)
    except ContractError as e:
        raise InvalidRequestError(str(e)) from None
    return text.replace("/", ".")
