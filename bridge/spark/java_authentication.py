"""Translates the Java client's authentication options into a query's identity for Pulsar, and back.

It reads a secret's file once to check it. Its messages never contain a secret.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from pydantic import SecretStr

from bridge.settings.pulsar import PulsarSettings
from bridge.settings.secret_file import SecretFile

__all__ = ["TLS_CLASS", "TOKEN_CLASS", "identity_of", "plug_in_of"]

_PACKAGE: Final = "org.apache.pulsar.client.impl.auth."
TOKEN_CLASS: Final = _PACKAGE + "AuthenticationToken"
TLS_CLASS: Final = _PACKAGE + "AuthenticationTls"
BASIC_CLASS: Final = _PACKAGE + "AuthenticationBasic"
OAUTH2_CLASS: Final = _PACKAGE + "oauth2.AuthenticationOAuth2"
_BASIC_NAMES: Final = {"userId": "username", "password": "password"}
_OAUTH2_NAMES: Final = {
    "issuerUrl": "issuer_url",
    "clientId": "client_id",
    "clientSecret": "client_secret",
    "privateKey": "key",
    "audience": "audience",
    "scope": "scope",
    "trustCertsFilePath": "tls_ca",
}
"""Parameters of the Java plug-ins, and of the C++ client for id and secret, with our settings. A secret may also be
given by its file: ``passwordFile``, ``clientSecretFile``, ``privateKeyFile``."""
_NO_EFFECT: Final = ("connectTimeout", "readTimeout")


def plug_in_of(pulsar: PulsarSettings) -> dict[str, str]:
    """Return class name and parameters of a plug-in for a user or OAuth2; empty for another identity."""
    if pulsar.username is not None:
        plugin, params = BASIC_CLASS, _named(pulsar, _BASIC_NAMES)
    elif pulsar.oauth2.enabled:
        plugin, params = OAUTH2_CLASS, _named(pulsar.oauth2, _OAUTH2_NAMES)
    else:
        return {}
    return {"authPluginClassName": plugin, "authParams": json.dumps(params)}


def _named(settings: object, names: dict[str, str]) -> dict[str, str]:
    found = {}
    for name, ours in names.items():
        value = getattr(settings, ours)
        if isinstance(value, SecretFile):  # each user of the secret reads the file, also the executors
            found[f"{name}File"] = str(value.path.absolute())
        elif isinstance(value, SecretStr):
            found[name] = value.get_secret_value()
        elif value is not None:
            found[name] = str(value)
    return found


def identity_of(get: Callable[[str], str | None], problems: list[str]) -> dict[str, Any]:
    """Return the settings of ``pulsar`` for a token, a user or OAuth2, and for a certificate and its key. With one of
    the former, the certificate is for TLS only.

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
    # As C++ clients do, also "token" for its class.
    short = plugin.strip().rpartition(".")[2].lower().removeprefix("authentication")
    if short == "token":
        return plain | _token(params, problems)
    if short == "tls":
        return plain | _tls(params, plain, problems)
    if short == "basic":
        return plain | _from_json(params, _BASIC_NAMES | {"username": "username"}, problems)
    if short == "oauth2":
        return plain | {"oauth2": _from_json(params, _OAUTH2_NAMES, problems)}
    if short != "disabled":
        remedy = f"give {TOKEN_CLASS}, {TLS_CLASS}, {BASIC_CLASS} or {OAUTH2_CLASS}"
        if short == "keystoretls":
            remedy = f"export the key store to PEM files (openssl pkcs12), and give {TLS_CLASS}"
        problems.append(f"pulsar.client.authPluginClassName={plugin!r} is not supported: {remedy}")
    return plain


def _token(params: str, problems: list[str]) -> dict[str, Any]:
    """Read the forms of the Java plug-in: token:…, file:///…, JSON with "token", or the token itself."""
    if params.startswith("file:"):
        try:
            return {"token": SecretFile(unquote(urlsplit(params).path))}
        except (OSError, ValueError) as e:
            problems.append(f"pulsar.client.authParams: the token's file cannot be read: {e}")
            return {}
    pairs = _json(params)
    token = params.strip().removeprefix("token:") if pairs is None else pairs.get("token")
    if not token:
        problems.append("pulsar.client.authParams has no token: give token:… or file:///…")
    return {"token": token} if token else {}


def _tls(params: str, plain: dict[str, Any], problems: list[str]) -> dict[str, Any]:
    pairs = _json(params)
    if pairs is None:
        pairs = {name.strip(): value.strip() for name, _, value in (p.partition(":") for p in params.split(","))}
    certificate = pairs.get("tlsCertFile") or plain["tls_certificate"]
    key = pairs.get("tlsKeyFile") or plain["tls_private_key"]
    if not certificate or not key:
        problems.append("pulsar.client.authParams: give tlsCertFile:…,tlsKeyFile:…")
        return {}
    return {"tls_certificate": certificate.removeprefix("file://"), "tls_private_key": key.removeprefix("file://")}


def _from_json(params: str, names: dict[str, str], problems: list[str]) -> dict[str, Any]:
    """Return our settings for parameters in JSON; secrets may be given by their files."""
    found: dict[str, Any] = {}
    known = {name.lower(): ours for name, ours in names.items()}
    for name, value in (_json(params) or {}).items():
        plain = name.replace("_", "").lower()  # the C++ client's names are like issuer_url
        ours, of_file = known.get(plain), known.get(plain.removesuffix("file"))
        try:
            if ours == "key":
                found["key"] = _key(value)
            elif ours is not None:
                found[ours] = value
            elif of_file in ("password", "client_secret", "key"):
                found[of_file] = SecretFile(value)
            elif name not in _NO_EFFECT and (name, value) != ("type", "client_credentials"):
                problems.append(f"pulsar.client.authParams: {name} is not supported: give {', '.join(names)}")
        except (OSError, ValueError) as e:
            problems.append(f"pulsar.client.authParams: {name} cannot be read: {getattr(e, 'strerror', None) or e}")
    if not found:
        problems.append(f"pulsar.client.authParams: give JSON with {', '.join(names)}")
    return found


def _key(value: str) -> SecretStr:
    """Return a key file from its URL (file:, data:), its path, or its content."""
    if value.startswith("data:"):
        try:
            return SecretStr(base64.b64decode(value.partition("base64,")[2], validate=True).decode())
        except (binascii.Error, UnicodeDecodeError):
            raise ValueError("it is not data:application/json;base64,…") from None
    if value.startswith("{"):
        return SecretStr(value)
    return SecretFile(unquote(urlsplit(value).path) if value.startswith("file:") else value)


def _json(params: str) -> dict[str, str] | None:
    if not params.lstrip().startswith("{"):
        return None
    try:
        body = json.loads(params)
    except ValueError:
        return {}
    return {str(name): str(value) for name, value in body.items()}
