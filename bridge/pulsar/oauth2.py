"""Access tokens for Pulsar by OAuth2 client credentials (RFC 6749, section 4.4).

As for Pulsar's own clients, the issuer's openid-configuration names the token endpoint, which gets client id and secret
in the body of a POST. Pulsar's client requests tokens too, but gives them to no other connection, so here all connections
share one token. Its first use after most of its lifetime requests the next one, with the secret that its file has then.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from bridge.display import printable
from bridge.errors import DeniedError, PulsebridgeError, TransientError, UnreachableError
from bridge.loggers import get_logger
from bridge.settings.pulsar import OAuth2Settings, PulsarSettings
from bridge.tls import client_context, handshake_problem

if TYPE_CHECKING:
    import httpx

__all__ = ["access_token"]

log = get_logger("pulsar")

_RENEWED_AT: Final = 0.8
"""Part of a token's lifetime after which the next one is requested."""
_LONGEST_S: Final = 86_400.0
_UNKNOWN_S: Final = 300.0
"""Lifetime of a token whose issuer does not report it, in seconds."""
_RETRY_S: Final = 1.0
"""Time until the next request after a failure, in seconds: many connections may need a token at once."""
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")


def access_token(settings: PulsarSettings) -> str:
    """Return a token that is valid now. Any thread may call; it waits for the issuer if a new token is needed.

    Raises TransientError if the issuer does not answer, DeniedError if it does not give us a token.
    """
    return _tokens(settings.oauth2).current(settings.connection_timeout)


class _Tokens:
    """The tokens of one client at one issuer."""

    def __init__(self, oauth2: OAuth2Settings) -> None:
        self._oauth2 = oauth2
        self._lock = threading.Lock()
        self._token = ""
        self._renew_at = self._ends_at = 0.0
        self._failure: PulsebridgeError | None = None

    def current(self, timeout_s: float) -> str:
        with self._lock:
            now = time.monotonic()
            if now >= self._renew_at:
                try:
                    self._token, lifetime_s = _requested(self._oauth2, timeout_s)
                except PulsebridgeError as e:
                    self._failure, self._renew_at = e, time.monotonic() + _RETRY_S
                    if now < self._ends_at:
                        log.warning(
                            "the OAuth2 issuer gives no new access token, and the current one soon expires. "
                            "Action: see that the issuer answers",
                            why=str(e),
                            shown=1,
                        )
                else:
                    self._failure = None
                    self._renew_at, self._ends_at = now + _RENEWED_AT * lifetime_s, now + lifetime_s
            if self._failure is not None and time.monotonic() >= self._ends_at:
                raise self._failure
            return self._token


@lru_cache(maxsize=32)
def _tokens(oauth2: OAuth2Settings) -> _Tokens:
    return _Tokens(oauth2)


def _requested(oauth2: OAuth2Settings, timeout_s: float) -> tuple[str, float]:
    """Return a new token and its lifetime in seconds."""
    import httpx  # here, because most processes do not need it

    client_id, secret, issuer = _client_of(oauth2)
    form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": secret}
    form |= {name: text for name, text in (("audience", oauth2.audience), ("scope", oauth2.scope)) if text}
    tls = PulsarSettings(tls_ca=oauth2.tls_ca)
    url = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
    try:
        with httpx.Client(verify=client_context(tls, "pulsar.oauth2"), timeout=timeout_s) as http:
            url = _endpoint(issuer, _object(http.get(url)))
            answer = _object(http.post(url, data=form), form)
    except (httpx.HTTPError, httpx.InvalidURL) as e:
        where = f"the OAuth2 issuer at {url}"
        problem = handshake_problem(e, tls, "pulsar.oauth2", where)
        if problem is not None:
            raise problem from e
        raise UnreachableError(
            f"{where} cannot be reached: {str(e) or type(e).__name__}",
            remedy="see that it runs, and check pulsar.oauth2.issuer_url",
        ) from e
    token = answer.get("access_token")
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise _not_an_issuer(url, "has no valid access_token")
    return token, _lifetime_s(answer.get("expires_in"))


def _client_of(oauth2: OAuth2Settings) -> tuple[str, str, str]:
    """Return client id, client secret and issuer URL."""
    if oauth2.key is None:
        assert oauth2.client_secret is not None
        return str(oauth2.client_id), oauth2.client_secret.get_secret_value(), str(oauth2.issuer_url)
    try:
        key = json.loads(oauth2.key.get_secret_value())
        if key.get("type", "client_credentials") != "client_credentials":
            raise ValueError
        return str(key["client_id"]), str(key["client_secret"]), oauth2.issuer_url or str(key["issuer_url"])
    except (ValueError, LookupError, AttributeError, TypeError):
        raise DeniedError(
            "pulsar.oauth2.key (or key_file) is not a key of client credentials",
            remedy='give {"type": "client_credentials", "client_id": …, "client_secret": …, "issuer_url": …}',
        ) from None  # the error's text may contain the secret


def _object(answer: httpx.Response, form: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the JSON object of an answer. Raises the error of a refusal, to the client of ``form`` if it is given."""
    url, status = answer.url, answer.status_code
    try:
        found = answer.json()
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        if status == 200:
            raise _not_an_issuer(url, "is not a JSON object")
        found = {}
    if status == 200:
        return found
    why = ": ".join(str(found[name]) for name in ("error", "error_description") if found.get(name))
    if form is not None:
        why = why.replace(form["client_secret"], "***")
    why = printable(why, 300)
    if status >= 500 or status == 429:
        raise TransientError(f"the OAuth2 issuer answered {status} to {url}" + (f": {why}" if why else ""))
    if form is None:
        raise DeniedError(f"the OAuth2 issuer answered {status} to {url}", remedy="check pulsar.oauth2.issuer_url")
    raise DeniedError(
        f"the OAuth2 issuer at {url} gives no token to the client {form['client_id']!r}: {why or status}",
        remedy="check pulsar.oauth2.client_id and client_secret (or client_secret_file, or key_file), audience and scope",
    )


def _endpoint(issuer: str, configuration: dict[str, Any]) -> str:
    found = configuration.get("token_endpoint")
    scheme = "https://" if issuer.startswith("https:") else "http"  # a secret that came by TLS leaves by TLS
    if not isinstance(found, str) or not found.startswith(scheme) or found != printable(found):
        raise _not_an_issuer(issuer, f"has no token_endpoint that begins with {scheme}")
    return found


def _not_an_issuer(url: object, why: str) -> DeniedError:
    return DeniedError(f"the answer of the OAuth2 issuer at {url} {why}", remedy="check pulsar.oauth2.issuer_url")


def _lifetime_s(reported: Any) -> float:
    try:
        found = float(reported)
    except (TypeError, ValueError, OverflowError):
        found = 0.0
    return min(found, _LONGEST_S) if found > 0 else _UNKNOWN_S
