"""Who may read and who may write: tokens, sessions, and the checks of each request before it reaches a page.

A browser sends requests of any web page. So the header Host must name this server (against DNS rebinding), and a
request that changes something must come from a page of this server (against forged forms).
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from pydantic import SecretStr
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bridge.http.access import names_server
from bridge.settings.ui import UiSettings

__all__ = ["COOKIE", "DOCS", "Access", "Guard", "Session", "same_origin"]

COOKIE: Final = "pulsebridge-session"
DOCS: Final = "/data-docs/"
"""Path of the Data Docs: pages of others, which run no script and do not see the session."""
_SESSIONS: Final = 200
_SESSION_S: Final = 12 * 3600.0
_OWN: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
)
_FOREIGN: Final = "sandbox; default-src 'none'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'"
_COMMON: Final = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # with no-referrer a browser hides the origin of a form
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


@dataclass
class Session:
    """What one browser may do. ``notice`` is shown once, on its next page."""

    token: str = field(repr=False)
    write: bool
    until_s: float
    notice: str = ""
    failed: bool = False
    """Whether the notice reports a failure."""


class Access:
    """The tokens in force, and the sessions of the browsers that gave one. Any thread may use it.

    A changed token ends its sessions.
    """

    def __init__(self, settings: UiSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._sessions: dict[str, Session] = {}

    @property
    def writable(self) -> bool:
        """Whether a token for commands and replays is set."""
        return self._settings.token is not None

    @property
    def open(self) -> bool:
        """Whether everyone who reaches the port may read."""
        return self._settings.read_token is None

    def login(self, token: str) -> str | None:
        """Return the id of a new session for a token, None for a wrong one."""
        write = _equal(token, self._settings.token)
        if not write and not _equal(token, self._settings.read_token):
            return None
        while len(self._sessions) >= _SESSIONS:
            self._sessions.pop(next(iter(self._sessions)), None)
        name = secrets.token_urlsafe(32)
        self._sessions[name] = Session(token, write, self._clock() + _SESSION_S)
        return name

    def session(self, name: str | None) -> Session | None:
        """Return a session that is valid now, else None."""
        found = self._sessions.get(name or "")
        if name is None or found is None:
            return None
        wanted = self._settings.token if found.write else self._settings.read_token
        if self._clock() > found.until_s or not _equal(found.token, wanted):
            self._sessions.pop(name, None)
            return None
        return found

    def logout(self, name: str | None) -> None:
        """End a session."""
        self._sessions.pop(name or "", None)


def _equal(given: str, wanted: SecretStr | None) -> bool:
    if wanted is None:
        return False
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), wanted.get_secret_value().encode())


def same_origin(headers: Headers) -> bool:
    """Return whether a form was sent by a page of this server: browsers name its origin in each such request."""
    try:
        origin = urlsplit(headers.get("origin", ""))
    except ValueError:
        return False
    return bool(origin.netloc) and origin.netloc.lower() == headers.get("host", "").lower()


class Guard:
    """Refuses requests to other hosts and forged forms, and adds the headers that restrict a page."""

    def __init__(self, app: ASGIApp, settings: UiSettings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        policy = _FOREIGN if scope["path"].startswith(DOCS) else _OWN

        async def restricted(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update({**_COMMON, "content-security-policy": policy})
                headers.setdefault("cache-control", "no-store")
            await send(message)

        problem = self._problem(scope)
        app = self._app if problem is None else PlainTextResponse(problem + "\n", 403)
        await app(scope, receive, restricted)

    def _problem(self, scope: Scope) -> str | None:
        if scope["path"] != "/healthz" and not names_server(
            scope["headers"], self._settings.host, self._settings.allowed_hosts
        ):
            return "the header Host must name this server: localhost, 127.0.0.1, [::1] or a name in ui.allowed_hosts"
        if scope["method"] not in ("GET", "HEAD") and not same_origin(Headers(scope=scope)):
            return "only a page of this server may send this request"
        return None
