"""TLS contexts made of the files that the settings name, and what a failed handshake means in words.

It decides what a certificate problem is called, which setting it belongs to, and whether trying again can help. A
context is made for each connection, so that files which were replaced count from the next one on.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from bridge.errors import ConfigError, DeniedError

__all__ = ["TlsFiles", "client_context", "handshake_problem"]

_EXPIRED: Final = (10,)
_NOT_YET: Final = (9,)
_NO_ISSUER: Final = (2, 18, 19, 20, 21)
_OTHER_NAME: Final = (62, 64)
"""Numbers of OpenSSL's X509_V_ERR_…; they are the same in all its versions."""

_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "HTTP_REQUEST")
_OURS_WANTED: Final = ("ALERT_CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE", "NO_CERTIFICATE")
_OURS_REFUSED: Final = (
    "ALERT_UNKNOWN_CA",
    "ALERT_BAD_CERTIFICATE",
    "ALERT_CERTIFICATE_EXPIRED",
    "ALERT_CERTIFICATE_REVOKED",
    "ALERT_CERTIFICATE_UNKNOWN",
    "ALERT_UNSUPPORTED_CERTIFICATE",
    "ALERT_ACCESS_DENIED",
)


class TlsFiles(Protocol):
    """What a section of the settings says about TLS."""

    @property
    def tls_ca(self) -> Path | None:
        """PEM file of the authorities."""

    @property
    def tls_certificate(self) -> Path | None:
        """PEM file of the client's certificate."""

    @property
    def tls_private_key(self) -> Path | None:
        """PEM file of the client's private key."""


def client_context(files: TlsFiles, section: str, *, check_hostname: bool = True) -> ssl.SSLContext:
    """Return a context of what the files hold now. ``section`` is the settings' name for errors: mqtt, pulsar.

    Raises ConfigError naming the setting whose file cannot be used.
    """
    ca, certificate, key = files.tls_ca, files.tls_certificate, files.tls_private_key
    try:
        context = ssl.create_default_context(cafile=None if ca is None else str(ca))
    except OSError as e:  # ssl.SSLError is one
        raise ConfigError(
            f"{section}.tls_ca: {ca} cannot be used: {_short(e)}",
            remedy="give a readable PEM file with the certificates of the authorities",
        ) from e
    context.check_hostname = check_hostname
    if certificate is None or key is None:
        return context
    try:
        # An answer instead of a question on the terminal, should the key have a passphrase.
        context.load_cert_chain(str(certificate), str(key), password=b"")
    except OSError as e:
        raise ConfigError(
            f"{section}.tls_certificate {certificate} and {section}.tls_private_key {key} cannot be used: {_short(e)}",
            remedy="give readable PEM files that belong together, the key without a passphrase",
        ) from e
    return context


def handshake_problem(error: BaseException, files: TlsFiles, section: str, where: str) -> DeniedError | None:
    """Return what somebody has to change when a TLS connection failed with ``error``, None for anything else.

    It looks through the causes of ``error`` as well. ``where`` is the server's address, ``files`` what we
    gave: some servers call a certificate bad that was not given at all.
    """
    for cause in _chain(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _theirs(cause, section, where)
        if isinstance(cause, ssl.SSLError):
            return _of_reason(str(cause.reason or ""), files.tls_certificate is not None, section, where)
    return None


def _theirs(error: ssl.SSLCertVerificationError, section: str, where: str) -> DeniedError:
    code, text = error.verify_code, str(error.verify_message or error).rstrip(".")
    if code in _OTHER_NAME:
        what, remedy = (
            f"the certificate of {where} names another host: {text}",
            f"give the host by a name in its certificate ({_address_setting(section)}), or have one issued for it",
        )
    elif code in _EXPIRED:
        what, remedy = (
            f"the certificate of {where} has expired",
            "renew the server's certificate; or set this machine's clock right",
        )
    elif code in _NOT_YET:
        what, remedy = f"the certificate of {where} is not yet valid", "set the clocks of both machines right"
    elif code in _NO_ISSUER:
        what, remedy = (
            f"the certificate of {where} is signed by an authority that is not trusted here: {text}",
            f"name the authority's PEM file in {section}.tls_ca",
        )
    else:
        what, remedy = (
            f"the certificate of {where} was not accepted: {text}",
            f"check it and {section}.tls_ca",
        )
    return DeniedError(what, remedy=remedy)


def _of_reason(reason: str, given: bool, section: str, where: str) -> DeniedError | None:
    if reason in _NO_TLS:
        return DeniedError(
            f"{where} does not speak TLS",
            remedy=f"name its TLS port, or take TLS off ({_tls_setting(section)})",
        )
    if any(reason.endswith(end) for end in (_OURS_WANTED if given else _OURS_WANTED + _OURS_REFUSED)):
        return DeniedError(
            f"{where} wants a certificate of this client ({reason})",
            remedy=f"set {section}.tls_certificate and {section}.tls_private_key",
        )
    if any(reason.endswith(end) for end in _OURS_REFUSED):
        return DeniedError(
            f"{where} does not accept this client's certificate ({reason})",
            remedy=f"renew {section}.tls_certificate, or have the server trust the authority that signed it",
        )
    return None


def _tls_setting(section: str) -> str:
    return "mqtt.tls=false" if section == "mqtt" else "pulsar:// and http:// in pulsar.service_url, admin_url"


def _address_setting(section: str) -> str:
    return "mqtt.host" if section == "mqtt" else "pulsar.service_url, pulsar.admin_url"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _short(error: OSError) -> str:
    return str(getattr(error, "strerror", None) or error).split(" (_ssl.c")[0]
