"""Requests to Pulsar's admin REST with the current credentials and certificates.

Credentials and certificates are re-read when their files change. A broker that does not own a topic answers 307 with the
owner's address. The credentials are sent to that address too, as Pulsar's own tools do, but never from https to http.
"""

# ruff: noqa: E402  load_late runs before the imports
from __future__ import annotations

import base64
import re
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, ClassVar, Final

from bridge.pulsar.late_modules import load_late

# httpx imports them only for its command line: half of its start-up time.
load_late("pygments.lexers", "pygments.util")
load_late("rich.console", "rich.markup", "rich.progress", "rich.syntax", "rich.table")

import httpx

from bridge.errors import DeniedError, ForbiddenError, PulsebridgeError, RefusedError, TransientError, UnreachableError
from bridge.loggers import get_logger
from bridge.pulsar.dial import credentials, credentials_remedy, grant_remedy, whom
from bridge.settings.pulsar import PulsarSettings
from bridge.tls import client_context, file_stamps, handshake_problem

__all__ = ["ROOT", "AdminHttp"]

log = get_logger("pulsar")

ROOT: Final = "/admin/v2"
_REDIRECTS: Final = 5
_SCHEMES: Final = {"token": "Bearer", "basic": "Basic"}
"""HTTP's name of a method of authentication."""
_BY_CONSUME: Final = frozenset(
    {
        "CONSUME",
        "SUBSCRIBE",
        "UNSUBSCRIBE",
        "GET_SUBSCRIPTIONS",
        "PEEK_MESSAGES",
        "RESET_CURSOR",
        "GET_BACKLOG_SIZE",
    }
)
_BY_EITHER: Final = frozenset({"LOOKUP", "GET_STATS", "GET_METADATA", "GET_TOPICS"})
"""Admin operations that Pulsar allows to a role with that action on the namespace."""


class AdminHttp:
    """The connections to one admin URL. Any thread may use it. Close it."""

    _preferred: ClassVar[dict[str, int]] = {}
    """By admin URL the index of the host that answered last: so a process waits only once for one that hangs."""

    def __init__(self, settings: PulsarSettings, *, timeout_s: float) -> None:
        """Raises ConfigError when a PEM file cannot be used."""
        self._settings = settings
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._files = self._stamps()
        self._http = self._client()
        self._former: httpx.Client | None = None

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            for client in (self._http, self._former):
                if client is not None:
                    client.close()

    def send(self, method: str, path: str, *, body: Any = None, root: str = ROOT) -> httpx.Response:
        """Send one request below ``root`` and return the whole answer, with any status."""
        with self.stream(method, path, body=body, root=root) as answer:
            answer.read()
            return answer

    @contextmanager
    def stream(self, method: str, path: str, *, body: Any = None, root: str = ROOT) -> Iterator[httpx.Response]:
        """Send one request below ``root`` and yield the answer before its body is read.

        With several hosts, the next one gets a request that a host cannot have executed, and any GET. Raises
        UnreachableError with the host that failed, also after a redirect, DeniedError if its certificate or ours is not
        accepted, RefusedError if it redirects from https to http; with OAuth2 also the errors
        of its issuer.
        """
        with closing(self._first_answer(method, root + path, body)) as answer:
            try:
                yield answer
            except httpx.HTTPError as e:
                raise self._problem(e) from e

    def _first_answer(self, method: str, path: str, body: Any) -> httpx.Response:
        name, urls = self._settings.admin_url, self._settings.admin_urls
        for left in reversed(range(len(urls))):
            index = self._preferred.get(name, 0)
            try:
                client = self._current()
                answer = client.send(client.build_request(method, urls[index] + path, json=body), stream=True)
            except httpx.HTTPError as e:
                problem = self._problem(e)
                redirected = _origin(e.request.url) != _origin(httpx.URL(urls[index]))
                safe = method == "GET" or isinstance(e, (httpx.ConnectError, httpx.ConnectTimeout))
                if not isinstance(problem, UnreachableError) or redirected:
                    raise problem from e
                if not safe or not left:
                    self._preferred[name] = (index + 1) % len(urls)
                    raise problem from e
                why = problem.what
            else:
                if answer.status_code < 500 or method != "GET" or not left:
                    return answer
                answer.close()
                why = f"{_origin(answer.url)} answered {answer.status_code}"
            self._preferred[name] = (index + 1) % len(urls)
            log.debug("the next host of pulsar.admin_url is asked", why=why)
        raise AssertionError("the last host returns or raises")

    def _problem(self, error: httpx.HTTPError) -> PulsebridgeError:
        where = f"Pulsar's admin at {_origin(error.request.url)}"
        problem = handshake_problem(error, self._settings, "pulsar", where)
        if problem is not None:
            return problem
        hint = "; is that its TLS port? Then set https://" if isinstance(error, httpx.RemoteProtocolError) else ""
        return UnreachableError(f"{where} cannot be reached: {error or type(error).__name__}{hint}")

    def refusal(self, method: str, path: str, answer: httpx.Response) -> PulsebridgeError:
        """Return our error for an answer with a status of 400 or more."""
        status, why = answer.status_code, _why(answer)
        if status >= 500:
            return TransientError(
                f"Pulsar's admin at {_origin(answer.url)} answered {status} to {method} {path}: {why}"
            )
        if status not in (401, 403):
            return RefusedError(f"Pulsar's admin refused {method} {path} with {status}: {why}")
        if status == 401 and "Unauthorized" not in why:
            return DeniedError(
                f"Pulsar's admin at {_origin(answer.url)} does not accept our credentials: {why}",
                remedy=credentials_remedy(self._settings),
            )
        return ForbiddenError(
            f"Pulsar's admin does not allow {whom(self._settings)} to {method} {path}: {why}",
            remedy=self._rights(path, why),
        )

    def _rights(self, path: str, why: str) -> str:
        """Return the remedy. Pulsar names the operation, but not the action that includes it."""
        operation = re.search(r"operation \[(\w+)\]", why)
        if path.startswith("/persistent/") and operation is not None and operation.group(1) in _BY_CONSUME:
            tenant, namespace = path.split("/")[2:4]
            return grant_remedy(self._settings, f"persistent://{tenant}/{namespace}/", "consume")
        if path.startswith("/persistent/") and operation is not None and operation.group(1) in _BY_EITHER:
            return "it needs produce or consume on the namespace: see `pulsebridge provision --dry-run`"
        return (
            "only an administrator of the tenant may: let one run what `pulsebridge provision --dry-run` prints, "
            "and set pulsar.provision=verify"
        )

    # --- inside ---

    def _authorize(self, request: httpx.Request) -> None:
        """Add the current credentials. httpx calls this for each request and each redirected one, without the header."""
        if self._settings.admin_url.startswith("https:") and request.url.scheme != "https":
            raise RefusedError(
                f"Pulsar's admin at {self._settings.admin_url} redirects to {request.url}, without TLS",
                remedy="set webServicePortTls for all its brokers",
            )
        method, data = credentials(self._settings)
        if method in _SCHEMES:
            shown = base64.b64encode(data) if method == "basic" else data
            request.headers["Authorization"] = f"{_SCHEMES[method]} {shown.decode()}"

    def _current(self) -> httpx.Client:
        with self._lock:
            if self._http.is_closed:  # by the end of the process, beside a watch
                raise UnreachableError("the connections to Pulsar's admin are closed")
            stamps = self._stamps()
            if stamps != self._files:
                # Other threads may still use the last client, so it is closed at the next change.
                fresh = self._client()
                if self._former is not None:
                    self._former.close()
                self._former, self._http, self._files = self._http, fresh, stamps
            return self._http

    def _client(self) -> httpx.Client:
        s = self._settings
        verify: Any = False
        if s.admin_url.startswith("https:"):
            verify = client_context(s, "pulsar")
        return httpx.Client(
            verify=verify,
            timeout=self._timeout_s,
            trust_env=False,
            follow_redirects=True,
            max_redirects=_REDIRECTS,
            event_hooks={"request": [self._authorize]},
        )

    def _stamps(self) -> tuple[tuple[int, ...], ...]:
        s = self._settings
        return file_stamps(s.tls_ca, s.tls_certificate, s.tls_private_key)


def _origin(url: httpx.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode('ascii')}"


def _why(answer: httpx.Response) -> str:
    try:
        return str(answer.json().get("reason", answer.text))[:300].strip()
    except (ValueError, AttributeError):
        title = re.search(r"<title>(.*?)</title>", answer.text, re.DOTALL)  # Jetty's page
        return " ".join((title.group(1) if title else answer.text).split())[:300]
