"""Pulsar with TLS, tokens and certificates: accepted clients, errors for the others, and secrets that rotate."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from bridge.errors import DeniedError
from bridge.inspect.check import Finding, check_endpoints
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import EARLIEST, OK, PulsarClient
from bridge.settings import Settings
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.secret_file import SecretFile
from tests.support.certificates import Authority
from tests.support.secured import SecuredPulsar
from tests.support.secured_tiers import granted, payloads, provisioned_for
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack


def pulsar_findings(settings: PulsarSettings) -> dict[str, Finding]:
    return {f.name: f for f in check_endpoints(Settings(pulsar=settings)) if f.name != "MQTT broker"}


def test_check_is_content_with_the_least_rights(pulsar: SecuredPulsar) -> None:
    admin = provisioned_for(pulsar, {"ingest": "bridge"})
    found = pulsar_findings(pulsar.as_role(admin, "bridge"))
    assert all(f.ok for f in found.values()), found


@pytest.mark.parametrize(
    ("change", "words", "setting"),
    [
        (lambda p, s: {"token": None}, "does not accept our credentials", "pulsar.token"),
        (lambda p, s: {"token": SecretStr("not.a.token")}, "does not accept our credentials", "pulsar.token"),
        (lambda p, s: {"token": SecretStr(p.token("admin", seconds=-60))}, "credentials", "expired 6"),
        (lambda p, s: {"tls_ca": s.file}, "not trusted here", "pulsar.tls_ca"),
        (
            lambda p, s: {
                "service_url": p.service_url.replace("+ssl", ""),
                "admin_url": p.admin_url.replace("https", "http"),
            },
            "",
            "TLS port",
        ),
    ],
)  # fmt: skip
def test_check_says_why_pulsar_does_not_let_us_in(
    pulsar: SecuredPulsar,
    stranger: Authority,
    change: Callable[[SecuredPulsar, Authority], dict[str, Any]],
    words: str,
    setting: str,
) -> None:
    settings = pulsar.settings("admin", **change(pulsar, stranger))
    for finding in pulsar_findings(settings).values():
        assert not finding.ok, finding
        assert words in finding.detail
        assert setting in f"{finding.detail} {finding.remedy}"
        assert "\n" not in finding.detail + finding.remedy
        if settings.token is not None:
            assert settings.token.get_secret_value() not in repr(finding)


def test_a_server_whose_certificate_is_expired_or_of_another_host_is_not_trusted(
    pulsar: SecuredPulsar, authority: Authority
) -> None:
    settings = pulsar.settings("admin")
    files = (pulsar.certificate.certificate, pulsar.certificate.key)
    kept = [file.read_bytes() for file in files]

    def serve(*contents: bytes) -> None:
        for file, content in zip(files, contents, strict=True):
            file.write_bytes(content)  # the broker looks for new files once a second

    def reported(words: str) -> bool:
        return all(words in f"{f.detail} {f.remedy}" for f in pulsar_findings(settings).values())

    try:
        for issued, words in (
            (authority.issue("elsewhere", "elsewhere.example"), "names another host"),
            (authority.issue("old", expired=True), "has expired"),
        ):
            serve(issued.certificate.read_bytes(), issued.key.read_bytes())
            poll_for(lambda words=words: reported(words), 30, words, every=0.3)  # type: ignore[misc]
    finally:
        serve(*kept)
        poll_for(lambda: all(f.ok for f in pulsar_findings(settings).values()), 30, "the good one", every=0.3)


def test_the_client_says_at_its_first_call_why_it_is_not_let_in(pulsar: SecuredPulsar) -> None:
    settings = pulsar.settings("admin", token=SecretStr("not.a.token"), operation_timeout="8s")
    with (
        PulsarClient(settings) as client,
        pytest.raises(DeniedError, match="does not accept our credentials"),
    ):
        client.partitions("persistent://public/default/x")


def test_a_client_certificate_is_a_role(pulsar: SecuredPulsar, authority: Authority) -> None:
    admin = provisioned_for(pulsar, {"ingest": "by-certificate"})
    pem = authority.issue("role", common_name="by-certificate")
    settings = admin.model_copy(update={"token": None, "tls_certificate": pem.certificate, "tls_private_key": pem.key})
    topic = admin.readings_topic("plant")
    with PulsarClient(settings) as client:
        producer: Any = client.producer(client.partitions(topic)[0])
        producer.send(b"by certificate")
        with pytest.raises(DeniedError, match=r"reading .* does not allow it"):
            client.reader(client.partitions(topic)[0], EARLIEST)
    assert payloads(admin, topic) == [b"by certificate"]
    with PulsarAdmin(settings) as rest:
        assert rest.topics(f"{admin.tenant}/{admin.namespace}") == [topic]


def test_a_missing_right_names_the_role_and_the_grant(pulsar: SecuredPulsar) -> None:
    admin = provisioned_for(pulsar, {"source": "reader"})
    with PulsarClient(pulsar.as_role(admin, "reader")) as client, pytest.raises(DeniedError) as caught:
        client.producer(client.partitions(admin.readings_topic("plant"))[0])
    line = str(caught.value)
    assert "'reader'" in line
    namespace = f"{admin.tenant}/{admin.namespace}"
    assert f"pulsar-admin namespaces grant-permission {namespace} --role reader --actions produce" in line


def test_a_token_that_expires_while_running_is_replaced_from_its_file(pulsar: SecuredPulsar, tmp_path: Path) -> None:
    admin = provisioned_for(pulsar, {"ingest": "rotating"})
    topic = admin.readings_topic("plant")
    file = tmp_path / "token"
    ends = time.time() + 4
    file.write_text(pulsar.token("rotating", seconds=4), encoding="utf-8")
    settings = admin.model_copy(update={"token": SecretFile(file)})
    results: list[object] = []
    with PulsarClient(settings) as client, PulsarAdmin(settings) as rest, PulsarAdmin(admin) as outside:
        partition = client.partitions(topic)[0]
        producer: Any = client.producer(partition, batching=False)
        producer.send(b"before")
        assert rest.partition_count(topic) == 1
        # The broker looks once a second; the client has nothing newer to show, and is cut.
        poll_for(lambda: time.time() > ends and not outside.stats(partition)["publishers"], 30, "the cut")
        producer.send_async(b"after", callback=lambda result, _id: results.append(result))
        with pytest.raises(DeniedError, match="does not accept our credentials"):
            rest.partition_count(topic)
        file.write_text(pulsar.token("rotating", seconds=600), encoding="utf-8")
        poll_for(lambda: results, 40, "the receipt after the rotation")
        assert results == [OK]
        assert rest.partition_count(topic) == 1
    assert payloads(admin, topic) == [b"before", b"after"]


@pytest.mark.thorough
def test_a_token_that_is_replaced_in_time_is_not_noticed(pulsar: SecuredPulsar, tmp_path: Path) -> None:
    admin = provisioned_for(pulsar, {"ingest": "in-time"})
    file = tmp_path / "token"
    ends = time.time() + 4
    file.write_text(pulsar.token("in-time", seconds=4), encoding="utf-8")
    settings = admin.model_copy(update={"token": SecretFile(file)})
    with PulsarClient(settings) as client, PulsarAdmin(admin) as outside:
        partition = client.partitions(admin.readings_topic("plant"))[0]
        producer: Any = client.producer(partition, batching=False)
        file.write_text(pulsar.token("in-time", seconds=600), encoding="utf-8")

        def since() -> list[str]:
            return [p["connectedSince"] for p in outside.stats(partition)["publishers"]]

        before = since()
        poll_for(lambda: time.time() > ends + 2.5, 30, "the end of the first token")
        producer.send(b"still here")
        assert since() == before


def test_certificates_of_the_admin_client_are_read_again_when_they_change(
    pulsar: SecuredPulsar, stranger: Authority, tmp_path: Path
) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_bytes(stranger.file.read_bytes())
    with PulsarAdmin(pulsar.settings("admin", tls_ca=ca)) as rest:
        with pytest.raises(DeniedError, match="not trusted here"):
            rest.cluster()
        ca.write_bytes(pulsar.authority.file.read_bytes())
        assert rest.cluster() == "standalone"


def test_rights_that_are_taken_away_stop_a_producer_without_a_dead_letter(pulsar: SecuredPulsar) -> None:
    admin = provisioned_for(pulsar, {"ingest": "taken"})
    with PulsarClient(pulsar.as_role(admin, "taken")) as client:
        partition = client.partitions(admin.readings_topic("plant"))[0]
        granted(admin, admin.namespace, "taken")
        with pytest.raises(DeniedError):
            client.producer(partition)
        granted(admin, admin.namespace, "taken", "produce")
        producer: Any = client.producer(partition)
        producer.send(b"back")
    assert payloads(admin, admin.readings_topic("plant")) == [b"back"]
