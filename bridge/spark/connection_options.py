"""Pulsar's connection options of Spark's source and sinks: typed access, and conversion to settings.

Names are those of the StreamNative connector, compared without case. Each tier defines its other options.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from bridge.settings.pulsar import PulsarSettings, hosts_of
from bridge.settings.secret_file import SecretFile
from bridge.settings.units import Duration
from bridge.spark.java_authentication import TOKEN_CLASS, identity_of, plug_in_of

__all__ = ["CONNECTION_OPTIONS", "OptionReader", "connection_options", "pulsar_settings"]

CONNECTION_OPTIONS: Final[Mapping[str, str]] = {
    "service.url": "Pulsar's binary service URL, pulsar:// or pulsar+ssl://; required.",
    "admin.url": "Pulsar's admin REST URL, http:// or https://; default: port 8080 (with TLS 8443) of the hosts of service.url. Several hosts are allowed in both: http://a:8080,b:8080.",
    "pulsar.client.token": "Token for both URLs.",
    "pulsar.client.authPluginClassName": "Java class name of an authentication plug-in, or its short name: AuthenticationToken, AuthenticationTls, AuthenticationBasic, AuthenticationOAuth2, AuthenticationDisabled.",
    "pulsar.client.authParams": "Its parameters: token:…, file:///… (the file is read at each use, so a token can rotate), or tlsCertFile:…,tlsKeyFile:…; also as JSON. AuthenticationBasic: JSON with userId and password (or passwordFile). AuthenticationOAuth2: JSON with issuerUrl, privateKey (the URL of a key file) or clientId and clientSecret (or clientSecretFile), audience, scope, trustCertsFilePath. Files are read by driver and executors at each use.",
    "pulsar.client.authParamMap": "The same, as JSON.",
    "pulsar.client.tlsTrustCertsFilePath": "PEM file of the authorities that sign the brokers' certificates.",
    "pulsar.client.tlsCertificateFilePath": "PEM file of this client's certificate.",
    "pulsar.client.tlsKeyFilePath": "PEM file of this client's private key.",
    "pulsar.client.tlsHostnameVerificationEnable": "Whether a broker's certificate must name its host (default true; the Java client's is false).",
    "pulsar.client.useTls": "True only with a service.url of pulsar+ssl://, which turns TLS on.",
    "pulsar.client.operationTimeoutMs": "Maximum time of a lookup or a subscribe, in ms (default 30000).",
    "pulsar.client.connectionTimeoutMs": "Maximum time of a TCP connect, in ms (default 5000).",
}
"""Each option with the text in the documentation of source and sinks."""


def connection_options(pulsar: PulsarSettings) -> dict[str, str]:
    """Return a query's connection options for these settings; secrets included."""
    found = {"service.url": pulsar.service_url, "admin.url": pulsar.admin_url}
    if isinstance(pulsar.token, SecretFile):  # each user of the token reads the file, also the executors
        found["pulsar.client.authPluginClassName"] = TOKEN_CLASS
        found["pulsar.client.authParams"] = pulsar.token.path.absolute().as_uri()
    elif pulsar.token is not None:
        found["pulsar.client.token"] = pulsar.token.get_secret_value()
    found |= {f"pulsar.client.{name}": value for name, value in plug_in_of(pulsar).items()}
    for name, value in (
        ("tlsTrustCertsFilePath", pulsar.tls_ca),
        ("tlsCertificateFilePath", pulsar.tls_certificate),
        ("tlsKeyFilePath", pulsar.tls_private_key),
    ):
        if value is not None:
            found[f"pulsar.client.{name}"] = str(value)
    if not pulsar.tls_validate_hostname:
        found["pulsar.client.tlsHostnameVerificationEnable"] = "false"
    return found


class OptionReader:
    """Typed access to options whose names are in lower case; problems are collected."""

    def __init__(self, options: Mapping[str, str], problems: list[str]) -> None:
        self.options = options
        self.problems = problems

    def text(self, name: str) -> str | None:
        """Return the text of an option, None if it is not set."""
        return self.options.get(name.lower())

    def integer(self, name: str, *, least: int) -> int | None:
        """Return a whole number of at least ``least``, None if the option is not set."""
        text = self.text(name)
        if text is None:
            return None
        try:
            value = int(text)
        except ValueError:
            self.problems.append(f"{name}={text!r} is not a whole number")
            return None
        if value < least:
            self.problems.append(f"{name}={text!r} is below {least}")
        return value

    def seconds(self, name: str, default: float) -> float:
        """Return a time in seconds; a bare number is ms."""
        text = self.text(name)
        if text is None:
            return default
        try:
            return Duration(text.lower(), bare="ms")  # as in Spark's own options
        except ValueError:
            self.problems.append(f"{name}={text!r} is not a valid time: give a number with ms, s, m, min, h or d")
            return default

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false."""
        text = self.text(name)
        if text is None:
            return default
        if text.strip().lower() not in ("true", "false"):
            self.problems.append(f"{name}={text!r} is neither true nor false")
        return text.strip().lower() == "true"

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return the option's word in lower case; the first of ``choices`` is the default."""
        text = (self.text(name) or choices[0]).strip().lower()
        if text not in choices:
            self.problems.append(f"{name}={text!r}: give {', '.join(choices[:-1])} or {choices[-1]}")
            return choices[0]
        return text


def pulsar_settings(reader: OptionReader, **more: object) -> PulsarSettings | None:
    """Return the settings for the connection's options, with ``more`` of them by name.

    Returns None if they are not valid; the reader then has the problems.
    """
    values: dict[str, Any] = dict(more)
    for name, schemes, default in (
        ("service.url", ("pulsar://", "pulsar+ssl://"), None),
        ("admin.url", ("http://", "https://"), _default_admin(reader.text("service.url") or "")),
    ):
        text = reader.text(name) or default
        if text is None:
            reader.problems.append(f"{name} is required: {CONNECTION_OPTIONS[name]}")
        elif not text.startswith(schemes):
            reader.problems.append(f"{name}={_shown(text)!r} does not begin with {' or '.join(schemes)}")
        values[name.replace(".", "_")] = text or ""
    if reader.flag("pulsar.client.useTls", False) and values["service_url"].startswith("pulsar://"):
        reader.problems.append("pulsar.client.useTls=true: give service.url as pulsar+ssl://, with the port for TLS")
    values |= identity_of(lambda name: reader.text(f"pulsar.client.{name}"), reader.problems)
    values["tls_ca"] = reader.text("pulsar.client.tlsTrustCertsFilePath")
    values["tls_validate_hostname"] = reader.flag("pulsar.client.tlsHostnameVerificationEnable", True)
    for name, setting in (
        ("operationTimeoutMs", "operation_timeout"),
        ("connectionTimeoutMs", "connection_timeout"),
    ):
        ms = reader.integer(f"pulsar.client.{name}", least=1)
        if ms is not None:
            values[setting] = Duration(ms / 1000)
    try:
        return PulsarSettings(**values)
    except ValidationError as e:
        reader.problems.extend(str(error["msg"]) for error in e.errors())
        return None


def _shown(url: str) -> str:
    """Return a URL without its user and password."""
    scheme, mark, rest = url.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"


def _default_admin(service_url: str) -> str | None:
    """Return the default admin URL, on the hosts of the service URL; None without a valid one."""
    scheme, port = {"pulsar": ("http", 8080), "pulsar+ssl": ("https", 8443)}.get(service_url.partition(":")[0], ("", 0))
    try:
        hosts = hosts_of(service_url) if scheme else []
    except ValueError:
        return None
    names = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, _ in hosts]
    return f"{scheme}://{','.join(names)}" if names else None
