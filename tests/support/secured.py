"""Servers with TLS, authentication and authorization on, for tests of what needs which rights.

``SecuredPulsar`` takes tokens (RS256), one user with a password, and client certificates; the role ``admin`` may do all, every other what a test
grants. ``SecuredArtemis`` has users with roles, ``mosquitto`` a password file and an access list. All listen on the
loopback address, are started by the tests that want them, and end with them.
"""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
import shutil
import signal
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from bridge.mqtt.device import probe
from bridge.mqtt.types import Connected
from bridge.pulsar.admin import PulsarAdmin
from bridge.settings import Settings
from bridge.settings.mqtt import MqttSettings
from bridge.settings.pulsar import PulsarSettings
from bridge.user_folders import default_cache_dir
from pulsebridge.downloads import distributions
from pulsebridge.downloads.preflight import find_java
from pulsebridge.local.mqtt_servers import artemis_command, artemis_files
from pulsebridge.local.ports import free_ports, is_free, loopback_interface
from pulsebridge.local.processes import Server, last_lines
from pulsebridge.local.pulsar_server import pulsar_command, pulsar_overrides, render_properties
from pulsebridge.local.sizes import Sizes
from tests.support.certificates import HOST, Authority, Pem
from tests.support.waiting import poll_for

__all__ = [
    "PASSWORD",
    "PULSAR_PASSWORDS",
    "PULSAR_USER",
    "SecuredArtemis",
    "SecuredPulsar",
    "mosquitto",
    "mosquitto_program",
]

PASSWORD = "an-mqtt-password"
PULSAR_USER = "by-password"
PULSAR_PASSWORDS = {
    "a-pulsar-password": "$apr1$pulsebri$q.3KceGVNKSs70pRNqbgR/",
    "the-next-password": "$apr1$pulsebri$Nq4jN3jE94P4MNs2G.ptj.",
}
"""Passwords of this user, as `htpasswd` and `openssl passwd -apr1` hash them; see ``SecuredPulsar.password``."""
_SIZES = Sizes(
    pulsar_heap=384,
    pulsar_direct=384,
    pulsar_write_cache=48,
    pulsar_read_cache=24,
    pulsar_entry_cache=64,
    mqtt_heap=192,
)


class _Java:
    """One of Java's servers in a folder of its own."""

    def __init__(self, folder: Path, distribution: distributions.Distribution) -> None:
        java, _ = find_java()
        assert java is not None
        cache = Settings().local.cache_dir or default_cache_dir()
        (self.home,) = distributions.ensure([distribution], cache=cache, java=java.home)
        self.java = java.home
        self.folder = folder
        self.server: Server | None = None
        for part in ("etc", "data", "tmp", "logs"):
            (folder / part).mkdir(parents=True, exist_ok=True)

    def run(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Server:
        skipped = ("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "CLASSPATH")
        inherited = {k: v for k, v in os.environ.items() if k not in skipped}
        self.server = Server(
            name,
            command,
            log=self.folder / f"logs/{name}.log",
            cwd=self.folder,
            environment={**inherited, "JAVA_HOME": str(self.java), **environment},
            grace_s=0,
        )
        return self.server

    def stop(self) -> None:
        if self.server is not None:
            self.server.kill()


class SecuredPulsar:
    """A standalone with TLS beside plain ports, tokens, a user, client certificates, authorization."""

    def __init__(self, folder: Path, authority: Authority) -> None:
        self._java = _Java(folder, distributions.PULSAR)
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.password = next(iter(PULSAR_PASSWORDS))
        """The password of ``PULSAR_USER``."""
        self.authority = authority
        self.certificate = authority.issue("pulsar")
        self._ports = free_ports(5)
        plain, web, tls, web_tls, _ = self._ports
        self.service_url = f"pulsar+ssl://{HOST}:{tls}"
        self.admin_url = f"https://{HOST}:{web_tls}"
        self.plain_service_url = f"pulsar://{HOST}:{plain}"
        self.plain_admin_url = f"http://{HOST}:{web}"
        self.home = self._java.home
        self.java = self._java.java

    def start(self) -> None:
        """Start it and wait until its admin and a look-up answer the role ``admin``."""
        folder, java = self._java.folder, self._java
        plain, web, tls, web_tls, bookie = self._ports
        key, users = folder / "etc/public.key", folder / "etc/htpasswd"
        key.write_bytes(self._key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))
        users.write_text(f"{PULSAR_USER}:{PULSAR_PASSWORDS[self.password]}\n", encoding="utf-8")
        package = "org.apache.pulsar.broker.authentication"
        overrides = pulsar_overrides(
            pulsar_port=plain, admin_port=web, loopback=loopback_interface(), sizes=_SIZES, fsync=False
        ) | {
            "brokerServicePortTls": str(tls),
            "webServicePortTls": str(web_tls),
            "tlsCertificateFilePath": str(self.certificate.certificate),
            "tlsKeyFilePath": str(self.certificate.key),
            "tlsTrustCertsFilePath": str(self.authority.file),
            "tlsCertRefreshCheckDurationSec": "1",
            "authenticationEnabled": "true",
            "authenticationProviders": ",".join(
                f"{package}.AuthenticationProvider{kind}" for kind in ("Token", "Basic", "Tls")
            ),
            "basicAuthConf": f"file://{users}",
            "authenticationRefreshCheckSeconds": "1",
            "tokenPublicKey": f"file://{key}",
            "authorizationEnabled": "true",
            "superUserRoles": "admin",
            "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
            "brokerClientAuthenticationParameters": f"token:{self.token('admin')}",
        }
        config = folder / "etc/standalone.conf"
        template = (java.home / "conf/standalone.conf").read_text(encoding="utf-8")
        config.write_text(render_properties(template, overrides), encoding="utf-8")
        command = pulsar_command(
            java=java.java,
            home=java.home,
            config=config,
            data=folder / "data",
            logs=folder / "logs",
            bookie_port=bookie,
            sizes=_SIZES,
            quick=True,
        )
        server = java.run("pulsar", command, {"PULSAR_STANDALONE_USE_ZOOKEEPER": "0"})

        def ready() -> bool:
            assert server.alive(), last_lines(server.log)
            with PulsarAdmin(self.settings("admin"), timeout_s=5) as admin:
                return admin.healthy()

        poll_for(ready, 120, "the secured Pulsar", every=0.25)

    def stop(self) -> None:
        """End it."""
        self._java.stop()

    def restart(self, password: str) -> None:
        """Start it again with its data and another password of its user. It reads passwords at its start alone.

        It ends by itself: the registration of a killed bookie can be deleted and re-created without end after a restart.
        """
        server = self._java.server
        assert server is not None
        os.kill(server.pid, signal.SIGTERM)
        poll_for(lambda: not server.alive(), 30, "the end of the secured Pulsar")
        self.stop()
        self.password = password
        self.start()

    def token(self, role: str, *, seconds: float | None = None) -> str:
        """Return a token for a role, which expires after ``seconds`` if given."""
        claims: dict[str, Any] = {"sub": role}
        if seconds is not None:
            claims["exp"] = time.time() + seconds
        return jwt.encode(claims, self._key, algorithm="RS256")

    def settings(self, role: str | None, **changes: Any) -> PulsarSettings:
        """Return settings over TLS with a token for ``role``, and with none for None."""
        values: dict[str, Any] = {
            "service_url": self.service_url,
            "admin_url": self.admin_url,
            "tls_ca": self.authority.file,
            "token": None if role is None else self.token(role),
        }
        return PulsarSettings(**(values | changes))

    def namespaces(self, role: str | None, **changes: Any) -> PulsarSettings:
        """Return settings for ``role`` that name a tenant and namespaces of its own; nothing is created."""
        name = uuid.uuid4().hex[:10]
        return self.settings(
            role,
            **({"tenant": f"t-{name}", "namespace": "readings", "system_namespace": "system"} | changes),
        )

    def as_role(self, settings: PulsarSettings, role: str | None) -> PulsarSettings:
        """Return the same settings with another role's token."""
        token = None if role is None else self.settings(role).token
        return settings.model_copy(update={"token": token})


class SecuredArtemis:
    """Artemis with a plain and a TLS listener, one that wants client certificates, users, and rights by address."""

    def __init__(
        self,
        folder: Path,
        authority: Authority,
        *,
        roles: Mapping[str, Sequence[str]],
        rights: Mapping[str, Mapping[str, str]],
    ) -> None:
        """``roles``: role → users (all with PASSWORD). ``rights``: address match → permission → roles, with commas."""
        self._java = _Java(folder, distributions.ARTEMIS)
        self.authority = authority
        self.certificate = authority.issue("artemis")
        self._roles = roles
        self._rights = rights
        self.port, self.tls_port, self.mtls_port = free_ports(3)

    def start(self) -> None:
        """Start it and wait until it accepts a client."""
        java, folder = self._java, self._java.folder
        for name, text in self._files().items():
            (folder / "etc" / name).write_text(text, encoding="utf-8")
        command = artemis_command(java=java.java, home=java.home, instance=folder, sizes=_SIZES, quick=True)
        server = java.run("artemis", command, {})
        user = next(iter(self._roles.values()))[0]

        def ready() -> bool:
            assert server.alive(), last_lines(server.log)
            return isinstance(probe(self.settings(user)), Connected)

        poll_for(ready, 90, "the secured Artemis", every=0.25)

    def stop(self) -> None:
        """End it."""
        self._java.stop()

    def settings(self, user: str | None, **changes: Any) -> MqttSettings:
        """Return settings over TLS for a user, with a client id of its own."""
        values: dict[str, Any] = {
            "host": HOST,
            "port": self.tls_port,
            "client_id": f"t-{uuid.uuid4().hex[:10]}",
            "tls": True,
            "tls_ca": self.authority.file,
            "username": user,
            "password": None if user is None else PASSWORD,
        }
        return MqttSettings(**(values | changes))

    def _files(self) -> dict[str, str]:
        files = artemis_files(port=self.port, instance=self._java.folder, sizes=_SIZES, fsync=False)
        tls = (
            f"sslEnabled=true;keyStoreType=PEM;keyStorePath={self.certificate.both};sslAutoReload=true;"
            f"trustStoreType=PEMCA;trustStorePath={self.authority.file}"
        )
        plain = files["broker.xml"].split('<acceptor name="mqtt">')[1].split("</acceptor>")[0]
        options = plain.split("?", 1)[1]
        acceptors = "".join(
            f'<acceptor name="{name}">tcp://{HOST}:{port}?{options};{tls};{more}</acceptor>'
            for name, port, more in (
                ("tls", self.tls_port, "needClientAuth=false"),
                ("mtls", self.mtls_port, "needClientAuth=true"),
            )
        )
        rights = "".join(
            f'<security-setting match="{match}">'
            + "".join(f'<permission type="{kind}" roles="{roles}"/>' for kind, roles in permissions.items())
            + "</security-setting>"
            for match, permissions in self._rights.items()
        )
        files["broker.xml"] = (
            files["broker.xml"]
            .replace(
                "<security-enabled>false</security-enabled>",
                "<security-enabled>true</security-enabled>"
                "<security-invalidation-interval>0</security-invalidation-interval>",
            )
            .replace(
                "</acceptors>",
                f"{acceptors}</acceptors>\n    <security-settings>{rights}</security-settings>",
            )
        )
        files["login.config"] = (
            "activemq {\n  org.apache.activemq.artemis.spi.core.security.jaas.PropertiesLoginModule required\n"
            '    org.apache.activemq.jaas.properties.user="users.properties"\n'
            '    org.apache.activemq.jaas.properties.role="roles.properties";\n};\n'
        )
        users = sorted({user for members in self._roles.values() for user in members})
        files["users.properties"] = "".join(f"{user} = {PASSWORD}\n" for user in users)
        files["roles.properties"] = "".join(f"{role} = {','.join(m)}\n" for role, m in self._roles.items())
        return files


# --- Mosquitto --------------------------------------------------------------------------------------------------


def mosquitto_program() -> str:
    """Return the path of mosquitto; the test is skipped where there is none."""
    found = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        pytest.skip("mosquitto is not installed")
    return found


@contextmanager
def mosquitto(
    folder: Path,
    *,
    certificate: Pem | None = None,
    client_ca: Path | None = None,
    users: Sequence[str] = (),
    password: str = PASSWORD,
    acl: str = "",
    port: int = 0,
) -> Iterator[tuple[int, Server]]:
    """Run a mosquitto and give its port: with TLS where it has a certificate, mTLS with ``client_ca``.

    ``users`` have ``password``; with users no other client is accepted. ``port`` 0 takes a free one.
    """
    if not port:
        (port,) = free_ports(1)
    lines = [
        f"listener {port} {HOST}",
        "log_dest stderr",
        f"allow_anonymous {str(not users).lower()}",
        "sys_interval 1",
    ]
    if certificate is not None:
        lines += [f"certfile {certificate.certificate}", f"keyfile {certificate.key}"]
    if client_ca is not None:
        lines += [f"cafile {client_ca}", "require_certificate true"]
    if users:
        file = folder / "users"
        file.write_text("".join(f"{user}:{_hashed(password)}\n" for user in users), encoding="utf-8")
        lines.append(f"password_file {file}")
    if acl:
        (folder / "acl").write_text(acl, encoding="utf-8")
        lines.append(f"acl_file {folder / 'acl'}")
    if os.getuid() == 0:
        lines.append("user root")  # else it gives up its rights, and with them its files
    config = folder / "mosquitto.conf"
    config.write_text("\n".join([*lines, ""]), encoding="utf-8")
    server = Server(
        "mosquitto",
        [mosquitto_program(), "-c", str(config)],
        log=folder / "mosquitto.log",
        cwd=folder,
        environment=dict(os.environ),
        grace_s=2,
    )
    try:
        poll_for(lambda: not is_free(port) or not server.alive(), 20, "mosquitto")
        assert server.alive(), last_lines(server.log)
        yield port, server
    finally:
        server.stop()


def _hashed(password: str) -> str:
    """Return a line's second field in mosquitto's password file: PBKDF2 with SHA-512."""
    salt = secrets.token_bytes(12)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, 101, 64)
    return f"$7$101${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"
