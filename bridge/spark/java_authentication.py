"""Translates the Java client's authentication options into a query's identity for Pulsar.

It reads a token's file once to check it. Its messages never contain a secret.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from bridge.settings.secret_file import SecretFile

__all__ = ["TLS_CLASS", "TOKEN_CLASS", "identity_of"]

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


def identity_of(get: Callable[[str], str | None], problems: list[str]) -> dict[str, Any]:
    """Return the settings of ``pulsar`` for a token, a certificate and its key. With a token, the certificate is for
    TLS only.

    ``get`` returns an option of ``pulsar.client.`` by its last part.
    """
    plain = {
        "token": get("token"),
        "tls_certificate": get("tlsCertificateFilePath"),
        "tls_private_key": get("tlsKeyFilePath"),
    }
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


def _token(params: str, plain: dict[str, Any], problems: list[str]) -> dict[str, Any]:
    """Read the forms of the Java plug-in: token:…, file:///…, JSON with "token", or the token itself."""
    if params.startswith("file:"):
        try:
            return plain | {"token": SecretFile(unquote(urlsplit(params).path))}
        except (OSError, ValueError) as e:
            problems.append(f"pulsar.client.authParams: the token's file cannot be read: {e}")
            return plain
    pairs = _json(params)
    token = params.strip().removeprefix("token:") if pairs is None else pairs.get("token")
    if not token:
        problems.append("pulsar.client.authParams has no token: give token:… or file:///…")
        return plain
    return plain | {"token": token}


def _tls(params: str, plain: dict[str, Any], problems: list[str]) -> dict[str, Any]:
    pairs = _json(params)
    if pairs is None:
        pairs = {name.strip(): value.strip() for name, _, value in (p.partition(":") for p in params.split(","))}
    certificate = pairs.get("tlsCertFile") or plain["tls_certificate"]
    key = pairs.get("tlsKeyFile") or plain["tls_private_key"]
    if not certificate or not key:
        problems.append("pulsar.client.authParams: give tlsCertFile:…,tlsKeyFile:…")
        return plain
    return plain | {
        "tls_certificate": certificate.removeprefix("file://"),
        "tls_private_key": key.removeprefix("file://"),
    }


def _json(params: str) -> dict[str, str] | None:
    if not params.lstrip().startswith("{"):
        return None
    try:
        body = json.loads(params)
    except ValueError:
        return {}
    return {str(name): str(value) for name, value in body.items()}
