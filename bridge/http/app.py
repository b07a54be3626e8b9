"""The answers to requests: refused by the head, or answered once the message is stored.

======  ======================================================================================================
status  meaning
======  ======================================================================================================
200     Pulsar has stored the message
202     at ``qos=1``: it is stored among the dead letters, with the reason; at ``qos=0``: it is only accepted
400     not a message, or not a topic to publish to: a retry does not help
401     no token, or not a valid one
403     its credential does not allow the topic; or it comes from a web page, or names another server
408     the body did not arrive in time
413     the body is too large; it was not read to its end
431     the request line and the headers are too large
503     not accepted, because too much is in flight or the service stops; or accepted, and Pulsar did not confirm it
        in time: then it may still be stored, and a retry may store it twice
======  ======================================================================================================

``begin`` checks the head before a byte of the body is read, ``take`` the message. Requests for commands: ``commands``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog

from bridge.http.access import Filters, Tokens, allows, host_problem, page_problem
from bridge.http.requests import DEVICES_PREFIX, PREFIX, InvalidRequestError, message_of
from bridge.intake.awaited import AwaitedIntake, Outcome, SaturatedError
from bridge.killpoints import reach
from bridge.mqtt.types import Message
from bridge.routing.templates import Filter
from bridge.settings import Settings

if TYPE_CHECKING:
    from bridge.http.commands import CommandRequests

__all__ = ["Answer", "Head", "HttpApp", "Request", "busy"]

log = structlog.get_logger("http")

_TOKENS_KEPT_S: Final = 1.0


class Answer(NamedTuple):
    """A status, the members of the JSON body or a body of bytes, and additional headers."""

    status: int
    body: Mapping[str, str] | bytes
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """A request whose head is accepted."""

    take: Callable[[bytes], asyncio.Future[Any] | Answer]
    """Begins it with the complete body. The future returns the argument of ``answer``."""
    answer: Callable[[Any], Answer]
    """Returns the answer to a result; None if there was none in time."""
    patience: float
    """How long its result may take, in seconds."""
    max_body: int
    """Maximum size of its body, in bytes."""
    waits: bool = False
    """Whether it waits for what may not come: it ends when its client leaves."""


@dataclass(frozen=True, slots=True)
class Head:
    """Request line and headers; names of headers are in lower case.

    ``certificate`` has the topics of the client's certificate, None on a connection that needed none.
    """

    method: bytes
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    certificate: Filters | None

    def values(self, name: bytes) -> list[bytes]:
        """Return the values of a header, in order."""
        return [value for known, value in self.headers if known == name]


class HttpApp:
    """Answers requests through an intake; both belong to one event loop. ``commands`` is None without commands."""

    def __init__(self, settings: Settings, intake: AwaitedIntake, commands: CommandRequests | None = None) -> None:
        self.closing = False
        """Set when the service stops: no more messages are accepted."""
        self._http = settings.http
        self.intake = intake
        self._commands = commands
        resume = settings.ingest.resume_topic
        self._resume = () if resume is None else (Filter.parse(resume),)
        self._tokens = Tokens({})
        self._tokens_at = 0.0

    # --- the head ---

    def begin(self, head: Head) -> Request | Answer:
        """Return what a head requests, or why it is refused. Does not raise."""
        try:
            granted = self._granted(head)
            return granted if isinstance(granted, Answer) else self._request(head, granted)
        except InvalidRequestError as e:
            return Answer(400, {"message": str(e)})
        except Exception as e:  # noqa: BLE001 every request needs an answer, and must not affect others
            return _fault(e)

    def _granted(self, head: Head) -> list[Filters] | Answer:
        """Return the topics of token and certificate; the request needs both if both are required."""
        granted = [] if head.certificate is None else [head.certificate]
        if self._http.tokens is not None:
            filters = self._tokens_in_force().filters(head.values(b"authorization"))
            if filters is None:
                needed = "a token is needed: Authorization: Bearer …"
                return Answer(401, {"message": needed}, (("WWW-Authenticate", "Bearer"),))
            return [*granted, filters]
        problem = page_problem(head.headers, self._http)
        if problem is None and head.certificate is None:
            problem = host_problem(head.headers, self._http)
        return granted if problem is None else Answer(403, {"message": problem})

    def _request(self, head: Head, granted: list[Filters]) -> Request | Answer:
        path, _, query = head.target.partition(b"?")
        if path.startswith(DEVICES_PREFIX):
            if self._commands is None:
                return Answer(404, {"message": "commands are not served here: http.commands.topics is empty"})
            if self.closing:
                return busy("the service is stopping")
            return self._commands.request(head.method, path, query, granted)
        if not path.startswith(PREFIX):
            return Answer(404, {"message": "publish to /topics/{mqtt topic}, or fetch /devices/{device}/commands"})
        if head.method != b"POST":
            return Answer(405, {"message": "publish with POST"}, (("Allow", "POST"),))
        if self.closing:
            return busy("the service is stopping; the message was not accepted")
        message = message_of(path, query, head.headers)
        if not all(allows(filters, message.topic) for filters in granted):
            return Answer(403, {"message": "this token or certificate does not allow the topic"})
        if not self._http.allow_resume and allows(self._resume, message.topic):
            return Answer(
                403, {"message": "requests to resume are not accepted over HTTP; http.allow_resume allows them"}
            )
        limits = self._http.limits
        return Request(partial(self._store, message), _stored, limits.store_timeout, limits.body_size)

    def _tokens_in_force(self) -> Tokens:
        now = time.monotonic()
        if now - self._tokens_at > _TOKENS_KEPT_S:  # their file may have been replaced
            found, problems = self._http.token_topics()
            self._tokens, self._tokens_at = Tokens(found), now
            if problems:
                log.warning(
                    "tokens were left out. Action: correct the lines; the service rereads them",
                    problems=problems,
                    shown=1,
                )
        return self._tokens

    # --- the body ---

    def take(self, request: Request, body: bytes) -> asyncio.Future[Any] | Answer:
        """Begin a request with a complete body. Does not raise."""
        if self.closing:
            return busy("the service is stopping; the message was not accepted")
        try:
            return request.take(body)
        except Exception as e:  # noqa: BLE001 every request needs an answer, and must not affect others
            return _fault(e)

    def _store(self, message: Message, body: bytes) -> asyncio.Future[Outcome] | Answer:
        reach("http_after_request")
        try:
            future = self.intake.take(message._replace(payload=body))
        except SaturatedError as e:
            return busy(f"{e.what}; the message was not accepted")
        reach("http_before_receipt")
        if message.qos == 0 and not future.done():
            return Answer(202, {"message": "accepted, not yet stored"})
        return future


def _stored(result: Outcome | None) -> Answer:
    """Return the answer to an accepted message; ``result`` is None if Pulsar did not confirm it in time."""
    if result is None or result.unknown:
        return busy(
            "Pulsar has not confirmed the message in time; it may still be stored, and a retry may store it twice"
        )
    reach("http_after_receipt")
    if result.left_out is not None:
        why = _LEFT_OUT.get(result.left_out, result.left_out)
        return Answer(400, {"message": f"not a reading, so it is not stored: {why}"})
    if result.dead_letter is not None:
        return Answer(202, {"message": "stored among the dead letters", "reason": result.dead_letter})
    return Answer(200, {"message": "OK"})


_LEFT_OUT: Final = {
    "command": "the topic or the message belongs to commands",
    "broker": "the topic is a broker's own",
}


def busy(why: str) -> Answer:
    """Return the answer that asks the client to retry."""
    return Answer(503, {"message": why}, (("Retry-After", "1"),))


def _fault(error: Exception) -> Answer:
    log.error(
        "a request failed because of a fault of the server. Action: report it", why=f"{type(error).__name__}: {error}"
    )
    return Answer(500, {"message": "the message was not accepted: a fault of the server"})
