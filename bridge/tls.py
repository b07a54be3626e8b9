"""Makes TLS contexts from the files in the settings, and explains failed handshakes.

It decides the error of a certificate problem, its setting, and whether a retry can help. Each connection has a new
context, so replaced files apply from the next connection on.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bridge.errors import ConfigError, DeniedError

if TYPE_CHECKING:
    from bridge.settings import MqttSettings, PulsarSettings

__all__ = ["client_context", "file_stamps", "handshake_problem"]

_CERTIFICATE_PROBLEMS: Final = (
    (
        (62, 64),
        "names another host: {text}",
        "give a host name of the certificate ({address}), or get a certificate for this host",
    ),
    ((10,), "has expired", "renew the server's certificate, or correct this machine's clock"),
    ((9,), "is not yet valid", "correct the clocks of both machines"),
    (
        (2, 18, 19, 20, 21),
        "is signed by an authority that is not trusted here: {text}",
        "set {section}.tls_ca to the authority's PEM file",
    ),
    ((), "was not accepted: {text}", "check it and {section}.tls_ca"),
)
"""Numbers of OpenSSL's X509_V_ERR_…, the problem and the remedy; the last entry is for all other numbers. The numbers are
the same in all versions of OpenSSL."""

_ADDRESSES: Final = {"mqtt": "mqtt.host", "pulsar.oauth2": "pulsar.oauth2.issuer_url"}
"""The setting with the server's address, by section; both URLs for pulsar."""
_PLAIN: Final = {"mqtt": "mqtt.tls=false", "pulsar.oauth2": "http:// in pulsar.oauth2.issuer_url"}
"""The setting without TLS, by section."""

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


def client_context(files: MqttSettings | PulsarSettings, section: str) -> ssl.SSLContext:
    """Return a context with the current content of the files. ``section`` is the one in errors: mqtt, pulsar, pulsar.oauth2.

    Raises ConfigError with the setting whose file cannot be used.
    """
    ca, certificate, key = files.tls_ca, files.tls_certificate, files.tls_private_key
    try:
        context = ssl.create_default_context(cafile=None if ca is None else str(ca))
    except OSError as e:  # ssl.SSLError is one
        raise ConfigError(
            f"{section}.tls_ca: {ca} cannot be used: {_short(e)}",
            remedy="give a readable PEM file with the certificates of the authorities",
        ) from e
    context.check_hostname = files.tls_validate_hostname
    if certificate is None or key is None:
        return context
    try:
        # With a password, OpenSSL does not ask for one on the terminal if the key has a passphrase.
        context.load_cert_chain(str(certificate), str(key), password=b"")
    except OSError as e:
        raise ConfigError(
            f"{section}.tls_certificate {certificate} and {section}.tls_private_key {key} cannot be used: {_short(e)}",
            remedy="give readable PEM files that belong together, the key without a passphrase",
        ) from e
    return context


def file_stamps(*files: Path | None) -> tuple[tuple[int, ...], ...]:
    """Return a value that changes if one of the files is replaced or rewritten."""
    return tuple(_stamp(file) for file in files if file is not None)


def _stamp(file: Path) -> tuple[int, ...]:
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size


def handshake_problem(
    error: BaseException, files: MqttSettings | PulsarSettings, section: str, where: str
) -> DeniedError | None:
    """Return the error for an operator if ``error`` is a failed TLS handshake, else None.

    It searches the causes of ``error`` as well. ``where`` is the server's address. ``files`` are those of this client:
    some servers report a missing certificate as a bad one.
    """
    for cause in _chain(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _theirs(cause, section, where)
        if isinstance(cause, ssl.SSLError):
            return _of_reason(str(cause.reason or ""), files.tls_certificate is not None, section, where)
    return None


def _theirs(error: ssl.SSLCertVerificationError, section: str, where: str) -> DeniedError:
    text = str(error.verify_message or error).rstrip(".")
    found = (entry[1:] for entry in _CERTIFICATE_PROBLEMS if error.verify_code in entry[0] or not entry[0])
    what, remedy = next(found)
    address = _ADDRESSES.get(section, "pulsar.service_url, pulsar.admin_url")
    return DeniedError(
        f"the certificate of {where} {what.format(text=text)}", remedy=remedy.format(section=section, address=address)
    )


def _of_reason(reason: str, given: bool, section: str, where: str) -> DeniedError | None:
    if reason in _NO_TLS:
        setting = _PLAIN.get(section, "pulsar:// and http:// in pulsar.service_url, admin_url")
        return DeniedError(f"{where} does not use TLS", remedy=f"give its TLS port, or turn TLS off ({setting})")
    if any(reason.endswith(end) for end in (_OURS_WANTED if given else _OURS_WANTED + _OURS_REFUSED)):
        return DeniedError(
            f"{where} requires a certificate of this client ({reason})",
            remedy=f"set {section}.tls_certificate and {section}.tls_private_key",
        )
    if any(reason.endswith(end) for end in _OURS_REFUSED):
        return DeniedError(
            f"{where} does not accept this client's certificate ({reason})",
            remedy=f"renew {section}.tls_certificate, or let the server trust the authority that signed it",
        )
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _short(error: OSError) -> str:
    return str(getattr(error, "strerror", None) or error).split(" (_ssl.c")[0]
