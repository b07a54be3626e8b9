"""The ASGI application: one request, one message, and the answer that says what became of it.

======  ======================================================================================================
status  what it means
======  ======================================================================================================
200     Pulsar has stored the message
202     at ``qos=1``: it is stored among the dead letters, with the reason; at ``qos=0``: it is taken, no more
400     it is no message, or one for a topic that takes none: publishing it again will not help
401     no token, or none of ours
408     the body did not come in time
413     the body is too large; it was not read to its end
503     not taken, since too much is in flight or the service stops; or taken, and Pulsar did not confirm it in
        time: then it may still be stored, and publishing it again may store it twice
======  ======================================================================================================
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import structlog
from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from bridge.http.requests import PREFIX, Refusal, message_of
from bridge.http.tokens import bears_token
from bridge.ingest.awaited import AwaitedIntake, Outcome, SaturatedError
from bridge.killpoints import reach
from bridge.settings.http import HttpSettings

__all__ = ["HttpApp"]

log = structlog.get_logger("http")

_RETRY_AFTER_S: Final = 1
_TOKENS_KEPT_S: Final = 1.0


class _AnyText(Convertor[str]):
    regex = "(?s:.*)"  # Starlette's own path stops at a line end, which a topic may have

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("pulsebridge_topic", _AnyText())


class _Answered(Exception):
    """The request is answered before its message is complete."""

    def __init__(self, response: Response) -> None:
        self.response = response


class HttpApp:
    """Answers requests out of an intake; both belong to one event loop.

    ``max_reading`` bounds the bodies that are being read, in bytes, ``connections`` tells how many are open.
    """

    def __init__(
        self,
        settings: HttpSettings,
        intake: AwaitedIntake,
        *,
        max_reading: int,
        connections: Callable[[], int] = lambda: 0,
    ) -> None:
        self.closing = False
        """Set when the service stops: nothing more is taken."""
        self._settings = settings
        self._intake = intake
        self._max_reading = max_reading
        self._connections = connections
        self._reading = 0  # bytes of bodies that are not complete, of all requests
        self._tokens: list[str] = settings.token_list()
        self._tokens_at = time.monotonic()
        self._guarded = settings.tokens is not None
        self.asgi = Starlette(
            routes=[Route("/topics/{topic:pulsebridge_topic}", self._publish, methods=["POST"])],
            exception_handlers={HTTPException: _http_error, Exception: _failed},
        )
        self.asgi.router.redirect_slashes = False

    async def _publish(self, request: Request) -> Response:
        try:
            return await self._answer(request)
        except _Answered as e:
            return e.response
        except ClientDisconnect:
            return _says(400, "the connection ended before the message was complete")
        except Exception as e:  # noqa: BLE001 a request must end in an answer, and take no other with it
            log.error("a request failed for a reason of ours; report it", why=f"{type(e).__name__}: {e}")
            return _says(500, "the message was not taken: a fault of the server")

    async def _answer(self, request: Request) -> Response:
        if self._guarded and not bears_token(
            (v for n, v in request.scope["headers"] if n == b"authorization"), self._known_tokens()
        ):
            return _says(
                401, "a token is needed: Authorization: Bearer …", headers={"WWW-Authenticate": "Bearer"}
            )
        if self._connections() > self._settings.max_connections:
            return _busy("too many connections; the message was not taken", close=True)
        if self.closing:
            return _busy("the service is stopping; the message was not taken")
        raw_path: bytes = request.scope["raw_path"]
        if not raw_path.startswith(PREFIX):
            return _says(404, "publish to /topics/{mqtt topic}")
        body = await self._body(request)
        message = message_of(raw_path, request.scope["query_string"], request.scope["headers"], body)
        if isinstance(message, Refusal):
            return _says(400, message.why)
        try:
            future = self._intake.take(message)
        except SaturatedError as e:
            return _busy(f"{e.what}; the message was not taken")
        reach("http_before_receipt")
        if message.qos == 0 and not future.done():
            return _says(202, "taken, not yet stored")
        try:
            outcome = await asyncio.wait_for(asyncio.shield(future), self._settings.store_timeout_s)
        except asyncio.TimeoutError:
            return _told(Outcome(unknown=True))
        reach("http_after_receipt")
        return _told(outcome)

    async def _body(self, request: Request) -> bytes:
        limit = self._settings.max_body_bytes
        told = request.headers.get("content-length", "")
        if told.isascii() and told.isdigit() and int(told[:19]) > limit:
            raise _Answered(_says(413, f"the body has {told[:19]} bytes, {limit} are taken"))
        try:
            return await asyncio.wait_for(self._collected(request, limit), self._settings.read_timeout_s)
        except asyncio.TimeoutError:
            raise _Answered(
                _says(408, "the body did not come in time", headers={"Connection": "close"})
            ) from None

    async def _collected(self, request: Request, limit: int) -> bytes:
        body = bytearray()
        counted = 0
        try:
            async for chunk in request.stream():
                body += chunk
                self._reading += len(chunk)
                counted += len(chunk)
                if counted > limit:
                    raise _Answered(_says(413, f"the body has more than {limit} bytes"))
                if self._reading > self._max_reading:
                    raise _Answered(_busy("too many bodies are being read; the message was not taken"))
            return bytes(body)
        finally:
            self._reading -= counted

    def _known_tokens(self) -> list[str]:
        now = time.monotonic()
        if now - self._tokens_at > _TOKENS_KEPT_S:  # they may stand in a file that was replaced
            self._tokens, self._tokens_at = self._settings.token_list(), now
        return self._tokens


def _told(outcome: Outcome) -> Response:
    if outcome.unknown:
        return _busy(
            "Pulsar has not confirmed the message in time; it may still be stored, and publishing it again may store "
            "it twice"
        )
    if outcome.left_out is not None:
        return _says(
            400, f"no reading, so it is not stored: {_LEFT_OUT.get(outcome.left_out, outcome.left_out)}"
        )
    if outcome.dead_letter is not None:
        return _says(202, "stored among the dead letters", reason=outcome.dead_letter)
    return _says(200, "OK")


_LEFT_OUT: Final = {
    "command": "the topic or the message belongs to commands",
    "broker": "the topic is a broker's own",
}


def _busy(why: str, *, close: bool = False) -> Response:
    return _says(
        503, why, headers={"Retry-After": str(_RETRY_AFTER_S)} | ({"Connection": "close"} if close else {})
    )


def _says(status: int, message: str, *, headers: dict[str, str] | None = None, **more: str) -> Response:
    return JSONResponse({"message": message} | more, status, headers)


async def _http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _says(error.status_code, error.detail, headers=dict(error.headers or {}))


async def _failed(_request: Request, error: Exception) -> Response:
    return _says(500, "a fault of the server")
