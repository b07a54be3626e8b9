"""Translates the Java client's authentication options into a query's identity for Pulsar.

It reads a token's file once to check it. Its messages never contain a secret.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pydantic import SecretStr

from bridge.settings.secret_file import token_of

__all__ = ["TLS_CLASS", "TOKEN_CLASS", "Identity", "identity_of"]

_PACKAGE: Final = "org.apache.pulsar.client.impl.auth."
TOKEN_CLASS: Final = _PACKAGE + "AuthenticationToken"
TLS_CLASS: Final = _PACKAGE + "AuthenticationTls"
_SHORT: Final = {
    "authenticationtoken": TOKEN_CLASS,
    "token": TOKEN_CLASS,
    "authenticationtls": TLS_CLASS,
    "tls": TLS_CLASS,
    "authenticationdisabled": "",
}
_UNSUPPORTED: Final = {
    "authenticationkeystoretls": "the client reads PEM files: export the key store (openssl pkcs12) and give "
    "AuthenticationTls with tlsCertFile:…,tlsKeyFile:…",
    "authenticationbasic": "give a token, or a client certificate",
    "authenticationoauth2": "give a token (pulsar.client.authParams=file:///… is read at each use, so it can rotate)",
    "authenticationathenz": "give a token, or a client certificate",
    "authenticationsasl": "give a token, or a client certificate",
}


@dataclass(frozen=True)
class Identity:
    """A token, or a certificate with its key. If both are set, the certificate is for TLS only."""

    token: SecretStr | None = None
    certificate: str | None = None
    key: str | None = None


def identity_of(get: Callable[[str], str | None], problems: list[str]) -> Identity:
    """Return the identity of the options. ``get`` returns an option of ``pulsar.client.`` by its last part."""
    text = get("token")
    plain = Identity(None if text is None else SecretStr(text), get("tlsCertificateFilePath"), get("tlsKeyFilePath"))
    plugin = get("authPluginClassName")
    params = get("authParams") or get("authParamMap") or ""
    if plugin is None:
        if params:
            problems.append("pulsar.client.authParams: give pulsar.client.authPluginClassName with it")
        return plain
    short = plugin.strip().rpartition(".")[2].lower()
    known = _SHORT.get(short)
    if known == "":
        return plain
    if known == TOKEN_CLASS:
        return _token(params, plain, problems)
    if known == TLS_CLASS:
        return _tls(params, plain, problems)
    problems.append(
        f"pulsar.client.authPluginClassName={plugin!r} is not supported: "
        + _UNSUPPORTED.get(short, f"give {TOKEN_CLASS} or {TLS_CLASS}")
    )
    return plain


def _token(params: str, plain: Identity, problems: list[str]) -> Identity:
    """Read the forms of the Java plug-in: token:…, file:///…, JSON with "token", or the token itself."""
    try:
        found = token_of(params)
    except (OSError, ValueError) as e:
        problems.append(f"pulsar.client.authParams: the token's file cannot be read: {e}")
        return plain
    if found is None and params.strip():
        pairs = _json(params)
        found = SecretStr(pairs.get("token", "") if pairs is not None else params.strip())
    if found is None or not found.get_secret_value():
        problems.append("pulsar.client.authParams has no token: give token:… or file:///…")
        return plain
    return Identity(found, plain.certificate, plain.key)


def _tls(params: str, plain: Identity, problems: list[str]) -> Identity:
    pairs = _json(params)
    if pairs is None:
        pairs = {name.strip(): value.strip() for name, _, value in (p.partition(":") for p in params.split(","))}
    certificate = pairs.get("tlsCertFile") or plain.certificate
    key = pairs.get("tlsKeyFile") or plain.key
    if not certificate or not key:
        problems.append("pulsar.client.authParams: give tlsCertFile:…,tlsKeyFile:…")
    return Identity(plain.token, _path(certificate), _path(key))


def _path(text: str | None) -> str | None:
    return text.removeprefix("file://") if text else None


def _json(params: str) -> dict[str, str] | None:
    if not params.lstrip().startswith("{"):
        return None
    try:
        body = json.loads(params)
    except ValueError:
        return {}
    return {str(name): str(value) for name, value in body.items()}
