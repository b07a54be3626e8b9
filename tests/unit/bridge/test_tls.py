"""What a failed handshake means in words: each real failure of a real handshake, between two memory buffers."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

from bridge.errors import ConfigError, DeniedError
from bridge.settings.mqtt import MqttSettings
from bridge.settings.pulsar import PulsarSettings
from bridge.tls import client_context, handshake_problem

NOW = datetime.datetime.now(datetime.timezone.utc)
CA = trustme.CA()
OTHER = trustme.CA()
DAY = datetime.timedelta(days=1)


def files(folder: Path, ca: trustme.CA, mine: trustme.LeafCert | None = None) -> MqttSettings:
    """Return settings with the authority's file, and the client's."""
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    values: dict[str, object] = {"tls": True, "tls_ca": folder / "ca.pem"}
    if mine is not None:
        mine.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
        mine.private_key_pem.write_to_path(str(folder / "key.pem"))
        values |= {"tls_certificate": folder / "cert.pem", "tls_private_key": folder / "key.pem"}
    return MqttSettings.model_validate(values)


def server_context(leaf: trustme.LeafCert, wants: trustme.CA | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    leaf.configure_cert(context)
    if wants is not None:
        wants.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def failure(client: ssl.SSLContext, server: ssl.SSLContext, host: str = "localhost") -> BaseException | None:
    """Shake hands in memory, then read one byte as the client; return what the client got to see."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(down, up, server_hostname=host)
    theirs = server.wrap_bio(up, down, server_side=True)
    steps: list[Callable[[], object]] = [ours.do_handshake, theirs.do_handshake]
    for turn in range(20):
        try:
            steps[turn % 2]()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLError as e:
            if turn % 2 == 0:
                return e
    try:
        ours.read(1)
    except ssl.SSLWantReadError:
        return None
    except ssl.SSLError as e:
        return e
    return None


def test_a_good_certificate_is_no_problem(tmp_path: Path) -> None:
    client = client_context(files(tmp_path, CA, CA.issue_cert("me")), "mqtt")
    assert failure(client, server_context(CA.issue_cert("localhost"), wants=CA)) is None


@pytest.mark.parametrize(
    ("leaf", "trusted", "words", "remedy"),
    [
        (CA.issue_cert("localhost"), OTHER, "authority that is not trusted", "mqtt.tls_ca"),
        (CA.issue_cert("elsewhere.example"), CA, "names another host", "mqtt.host"),
        (
            CA.issue_cert("localhost", not_after=NOW - DAY),
            CA,
            "has expired",
            "renew the server's certificate",
        ),
    ],
)
def test_a_certificate_that_is_not_accepted_is_one_line_with_its_setting(
    tmp_path: Path, leaf: trustme.LeafCert, trusted: trustme.CA, words: str, remedy: str
) -> None:
    error = failure(client_context(files(tmp_path, trusted), "mqtt"), server_context(leaf))
    assert error is not None
    problem = handshake_problem(error, MqttSettings(), "mqtt", "localhost:8883")
    assert isinstance(problem, DeniedError)
    assert words in problem.what
    assert "localhost:8883" in problem.what
    assert remedy in str(problem.remedy)
    assert "\n" not in str(problem)


def test_a_server_that_wants_our_certificate_and_one_that_does_not_like_it(tmp_path: Path) -> None:
    server = server_context(CA.issue_cert("localhost"), wants=CA)
    none = failure(client_context(files(tmp_path, CA), "mqtt"), server)
    given = files(tmp_path, CA, OTHER.issue_cert("me"))
    strange = failure(client_context(given, "mqtt"), server)
    assert none is not None
    assert strange is not None
    assert "requires a certificate of this client" in str(handshake_problem(none, MqttSettings(), "mqtt", "h"))
    assert "does not accept this client's certificate" in str(handshake_problem(strange, given, "mqtt", "h"))


def test_the_cause_is_found_below_other_errors(tmp_path: Path) -> None:
    inner = failure(client_context(files(tmp_path, OTHER), "mqtt"), server_context(CA.issue_cert("localhost")))
    outer = RuntimeError("outer")
    outer.__cause__ = inner
    assert "pulsar.tls_ca" in str(handshake_problem(outer, PulsarSettings(), "pulsar", "h"))
    assert handshake_problem(ConnectionRefusedError(), PulsarSettings(), "pulsar", "h") is None


def test_a_file_that_cannot_be_used_is_named_with_its_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mqtt\.tls_ca: /nowhere/ca\.pem"):
        client_context(MqttSettings(tls=True, tls_ca=Path("/nowhere/ca.pem")), "mqtt")
    settings = files(tmp_path, CA, CA.issue_cert("me"))
    CA.issue_cert("other").private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    with pytest.raises(ConfigError, match=r"pulsar\.tls_certificate .* belong together"):
        client_context(
            PulsarSettings(tls_certificate=settings.tls_certificate, tls_private_key=settings.tls_private_key),
            "pulsar",
        )
