"""MQTT with TLS, client certificates and passwords on real brokers: a refusal is one line."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bridge.errors import DeniedError
from bridge.mqtt.device import DeviceClient, probe
from bridge.mqtt.types import Connected, Disconnected
from bridge.settings.mqtt import MqttSettings
from bridge.settings.secret_file import SecretFile
from tests.support.certificates import HOST, Authority, Pem
from tests.support.secured import PASSWORD, SecuredArtemis, mosquitto, mosquitto_program
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack

Opened = Callable[..., MqttSettings]


def over_tls(port: int, authority: Authority, **changes: Any) -> MqttSettings:
    values: dict[str, Any] = {
        "host": HOST,
        "port": port,
        "tls": True,
        "tls_ca": authority.file,
        "client_id": f"t-{uuid.uuid4().hex[:10]}",
        "reconnect_min": "50ms",
        "reconnect_max": "200ms",
    }
    return MqttSettings(**(values | changes))


def mine(pem: Pem) -> dict[str, Path]:
    return {"tls_certificate": pem.certificate, "tls_private_key": pem.key}


@contextmanager
def broker(kind: str, request: pytest.FixtureRequest, folder: Path) -> Iterator[tuple[int, int]]:
    """Give the ports of TLS and of mTLS; the user ``device`` is known."""
    authority: Authority = request.getfixturevalue("authority")
    if kind == "artemis":
        artemis: SecuredArtemis = request.getfixturevalue("artemis")
        yield artemis.tls_port, artemis.mtls_port
        return
    mosquitto_program()
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    server = authority.issue("mosquitto")
    with (
        mosquitto(folder / "a", certificate=server, users=("device",)) as (tls, _),
        mosquitto(folder / "b", certificate=server, client_ca=authority.file, users=("device",)) as (mtls, _),
    ):
        yield tls, mtls


@pytest.mark.parametrize("kind", ["artemis", "mosquitto"])
@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
def test_what_the_broker_does_not_accept_is_one_line_with_its_setting(
    kind: str,
    protocol: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    authority: Authority,
    stranger: Authority,
) -> None:
    user = {"username": "device", "password": PASSWORD, "protocol": protocol}
    with broker(kind, request, tmp_path) as (tls, mtls):
        ours, strange = authority.issue("client"), stranger.issue("client")
        good = probe(over_tls(tls, authority, **user))
        assert isinstance(good, Connected), good.why
        assert isinstance(probe(over_tls(mtls, authority, **user, **mine(ours))), Connected)
        for port, changes, words, setting in (
            (tls, user | {"password": "wrong-one"}, "refused the connection", "mqtt.password"),
            (tls, {"protocol": protocol}, "refused the connection", "mqtt.username"),
            (tls, user | {"tls_ca": stranger.file}, "not trusted here", "mqtt.tls_ca"),
            (mtls, user, "requires a certificate", "mqtt.tls_certificate"),
            (mtls, user | mine(strange), "", "mqtt.tls_certificate"),
        ):
            found = probe(over_tls(port, authority, **changes))
            assert isinstance(found, Disconnected)
            line = f"{found.why} — {found.remedy}"
            assert words in line, line
            assert setting in line, line
            assert "wrong-one" not in line
            assert PASSWORD not in line
            assert "\n" not in line


@pytest.mark.parametrize(
    ("issue", "words"),
    [
        ({"expired": True}, "has expired"),
        ({"hosts": ("elsewhere.example",)}, "names another host"),
    ],
)
def test_a_server_whose_certificate_is_expired_or_of_another_host_is_not_trusted(
    issue: dict[str, Any], words: str, tmp_path: Path, authority: Authority
) -> None:
    mosquitto_program()
    bad = authority.issue("bad", *issue.get("hosts", ()), expired=issue.get("expired", False))
    with mosquitto(tmp_path, certificate=bad) as (port, _):
        found = probe(over_tls(port, authority))
        assert isinstance(found, Disconnected)
        assert words in found.why
        assert found.remedy
        relaxed = probe(over_tls(port, authority, tls_validate_hostname=False))
        assert isinstance(relaxed, Connected) is ("expired" not in issue)


def test_a_plain_port_behind_tls_settings_is_named(tmp_path: Path, authority: Authority) -> None:
    mosquitto_program()
    with mosquitto(tmp_path) as (port, _):
        found = probe(over_tls(port, authority, connect_timeout="2s"))
        assert isinstance(found, Disconnected)


def test_certificates_that_were_replaced_are_used_at_the_next_connect(
    tmp_path: Path, authority: Authority, stranger: Authority
) -> None:
    mosquitto_program()
    ca, certificate, key = tmp_path / "ca.pem", tmp_path / "mine.pem", tmp_path / "mine.key"

    def trust(one: Authority) -> Pem:
        """Put one authority's certificate and ours by it where the settings say."""
        files = one.issue("rotating")
        for source, target in ((one.file, ca), (files.certificate, certificate), (files.key, key)):
            target.write_bytes(source.read_bytes())
        return one.issue("server")

    server = trust(authority)
    pem = Pem(tmp_path / "server.crt", tmp_path / "server.key", tmp_path / "both")

    def serve(one: Pem) -> None:
        pem.certificate.write_bytes(one.certificate.read_bytes())
        pem.key.write_bytes(one.key.read_bytes())

    serve(server)
    client_ca = tmp_path / "clients.pem"
    client_ca.write_bytes(authority.file.read_bytes())
    with mosquitto(tmp_path, certificate=pem, client_ca=client_ca) as (port, first):
        settings = over_tls(port, authority, tls_ca=ca, tls_certificate=certificate, tls_private_key=key)
        with DeviceClient(settings, settings.client_id) as device:
            first.kill()
            poll_for(lambda: device.last_loss is not None, 20, "the loss of the connection")
            client_ca.write_bytes(stranger.file.read_bytes())
            serve(stranger.issue("server"))
            with mosquitto(tmp_path, certificate=pem, client_ca=client_ca, port=port):
                poll_for(
                    lambda: device.last_loss is not None and "not trusted" in device.last_loss.why,
                    20,
                    "the old files to be refused",
                )
                assert device.connections == 1
                trust(stranger)
                poll_for(lambda: device.connections == 2, 20, "the new files to be accepted")
                device.publish("plant/x", b"1")
                assert device.flush(10)


def test_a_password_from_a_file_is_read_at_each_connect(tmp_path: Path, authority: Authority) -> None:
    mosquitto_program()
    secret = tmp_path / "password"
    secret.write_text(PASSWORD, encoding="utf-8")
    with mosquitto(tmp_path, users=("device",)) as (port, first):
        settings = over_tls(port, authority, tls=False, tls_ca=None, username="device", password=SecretFile(secret))
        with DeviceClient(settings, settings.client_id) as device:
            first.kill()
            with mosquitto(tmp_path, users=("device",), password="rotated", port=port):
                poll_for(
                    lambda: device.last_loss is not None and "refused the connection" in device.last_loss.why,
                    20,
                    "the old one refused",
                )
                secret.write_text("rotated\n", encoding="utf-8")
                poll_for(lambda: device.connections == 2, 20, "the new one accepted")


def test_a_refused_client_gets_the_reason_at_once(tmp_path: Path, authority: Authority) -> None:
    mosquitto_program()
    with mosquitto(tmp_path, users=("device",)) as (port, _):
        settings = over_tls(port, authority, tls=False, tls_ca=None, username="device", password="wrong-one")
        with pytest.raises(DeniedError, match="refused the connection") as caught:
            DeviceClient(settings, settings.client_id).connect(60)
        assert "wrong-one" not in repr(caught.value)
