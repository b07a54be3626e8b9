"""Publishing over HTTP into a real Pulsar: what each answer means, who may publish, and what bounds it."""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from bridge import contract
from bridge.ingest.service import IngestService
from bridge.pulsar.admin import PulsarAdmin
from bridge.settings import Settings
from bridge.settings.http import HttpSettings
from bridge.settings.ingest import IngestSettings
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.rules import TopicRule
from pulsebridge.local.stack import LocalStack
from tests.support.ingest import dead_letters, running_ingest, stored
from tests.support.protocol_peers import held
from tests.support.stack import provisioned
from tests.support.waiting import patient, poll_for

pytestmark = pytest.mark.stack

RULE = TopicRule(
    name="fleet",
    filter="fleet/+device/+metric",
    topic="fleet",
    device="{device}",
    command_topic="fleet-commands/{device}",
)


@pytest.fixture
def pulsar(stack: LocalStack) -> PulsarSettings:
    """Namespaces of one's own, with the topic ``fleet`` of one partition."""
    made = provisioned(stack, partitions=1)
    with PulsarAdmin(made, timeout_s=30) as admin:
        admin.create_partitioned(made.readings_topic("fleet"), 1)
    return made


def settings_of(pulsar: PulsarSettings, http: dict[str, Any], **ingest: Any) -> Settings:
    return Settings(
        messaging_protocols=("http",),
        pulsar=pulsar,
        http=HttpSettings(**({"port": 0} | http)),
        ingest=IngestSettings(routes=(RULE,), **ingest),
    )


@contextmanager
def serving(
    pulsar: PulsarSettings, http: dict[str, Any] | None = None, **ingest: Any
) -> Iterator[tuple[httpx.Client, IngestService]]:
    with running_ingest(settings_of(pulsar, http or {}, **ingest)) as service:
        address = service.running.listeners["http"][0]
        with httpx.Client(base_url=f"http://{address.host}:{address.port}", timeout=60, trust_env=False) as client:
            yield client, service


def payloads(pulsar: PulsarSettings) -> list[bytes]:
    return [m.payload for m in stored(pulsar, "fleet")]


def test_a_message_has_its_key_and_envelope_and_is_stored_when_it_is_answered(pulsar: PulsarSettings) -> None:
    with serving(pulsar) as (client, _):
        answer = client.post(
            "/topics/fleet/w-1/glucose%20level?qos=1",
            content=b"\x00\x01binary",
            headers=[
                ("Content-Type", "application/json"),
                ("MQTT-User-Property", "b=1"),
                ("MQTT-User-Property", "a=2"),
                ("MQTT-User-Property", "b=3"),
                ("MQTT-Response-Topic", "answers/here"),
                ("MQTT-Correlation-Data", "AP8="),
                ("MQTT-Message-Expiry", "600"),
            ],
        )
        assert (answer.status_code, answer.json()) == (200, {"message": "OK"})
        (found,) = stored(pulsar, "fleet")
    properties = found.properties
    assert (found.payload, found.key) == (b"\x00\x01binary", "w-1")
    assert properties[contract.P_TOPIC] == "fleet/w-1/glucose level"
    assert (properties[contract.P_DEVICE], properties[contract.P_COMMAND_TOPIC]) == ("w-1", "fleet-commands/w-1")
    assert (properties[contract.P_QOS], properties[contract.P_RETAIN], properties[contract.P_PROTOCOL]) == (
        "1",
        "0",
        "http",
    )
    assert contract.decode_user_properties(properties[contract.P_USER]) == [("b", "1"), ("a", "2"), ("b", "3")]
    assert contract.decode_correlation(properties[contract.P_CORRELATION]) == b"\x00\xff"
    assert properties[contract.P_CONTENT_TYPE] == "application/json"
    assert (properties[contract.P_RESPONSE_TOPIC], properties[contract.P_EXPIRY]) == ("answers/here", "600")


def test_each_answer_says_what_became_of_the_message(pulsar: PulsarSettings) -> None:
    with serving(pulsar, limits={"message_size": "128KiB", "topics": 1}) as (client, _):
        post = client.post
        assert post("/topics/fleet/a/m?qos=0", content=b"zero").status_code in (200, 202)
        assert post("/topics/first/x", content=b"its route may name one").status_code == 200
        dead = post("/topics/elsewhere/x", content=b"one topic too many")
        assert (dead.status_code, dead.json()["message"]) == (202, "stored among the dead letters")
        assert "ingest.limits.topics is 1" in dead.json()["reason"]
        for path in ("/topics/fleet-commands/a", "/topics/%24SYS/x", "/topics/a/%23", "/topics/"):
            refused = post(path, content=b"x")
            assert (refused.status_code, bool(refused.json()["message"])) == (400, True), path
        origin = {"MQTT-User-Property": f"{contract.ORIGIN_PROPERTY}={contract.ORIGIN_PUSH}"}
        assert post("/topics/fleet/a/m", content=b"x", headers=origin).status_code == 400
        assert post("/topics", content=b"x").status_code == post("/", content=b"x").status_code == 404
        wrong = client.get("/topics/fleet/a/m")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
        poll_for(lambda: payloads(pulsar) == [b"zero"], 30, "the message at QoS 0")
    assert [m.payload for m in dead_letters(pulsar)] == [b"one topic too many"]


def test_a_body_over_the_limit_is_refused_before_it_is_read(pulsar: PulsarSettings) -> None:
    with serving(pulsar, {"limits": {"body_size": "1000B"}}) as (client, service):
        assert client.post("/topics/fleet/a/m", content=bytes(1000)).status_code == 200
        assert client.post("/topics/fleet/a/m", content=bytes(1001)).status_code == 413
        assert client.post("/topics/fleet/a/m", content=(bytes(600) for _ in range(2))).status_code == 413
        with socket.create_connection(service.running.listeners["http"][0], timeout=30) as raw:
            raw.sendall(b"POST /topics/fleet/a/m HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n")
            assert raw.recv(100).startswith(b"HTTP/1.1 413 ")  # nothing of it was sent
        assert client.post("/topics/fleet/a/m", content=b"still here").status_code == 200
    assert payloads(pulsar) == [bytes(1000), b"still here"]


def test_h39_beyond_the_bound_a_connection_is_answered_503_and_closed_before_it_sends(
    pulsar: PulsarSettings,
) -> None:
    with serving(pulsar, {"limits": {"connections": 2}}) as (client, service), ExitStack() as opened:
        address = service.running.listeners["http"][0]
        first, _second, third = (opened.enter_context(socket.create_connection(address, timeout=30)) for _ in range(3))
        answer = b""
        while chunk := third.recv(1000):
            answer += chunk
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: " in answer.lower()
        first.close()
        poll_for(lambda: taken(lambda: client.post("/topics/fleet/a/m", content=b"x").status_code), 30, "room")


def test_a_silent_client_is_answered_or_cut_and_takes_nothing_with_it(pulsar: PulsarSettings) -> None:
    with serving(pulsar, {"limits": {"read_timeout": "500ms", "first_request_timeout": "500ms"}}) as (client, service):
        address = service.running.listeners["http"][0]
        with (
            socket.create_connection(address, timeout=30) as half,
            socket.create_connection(address, timeout=30) as mute,
        ):
            half.sendall(b"POST /topics/fleet/a/m HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nhalf")
            assert half.recv(100).startswith(b"HTTP/1.1 408 ")
            assert mute.recv(100) == b""
        with socket.create_connection(address, timeout=30) as head:
            head.sendall(b"POST /topics/fleet/a/m HTTP/1.1\r\nHo")
            assert head.recv(100) == b""
        assert client.post("/topics/fleet/a/m", content=b"whole").status_code == 200
    assert payloads(pulsar) == [b"whole"]


def test_what_pulsar_does_not_confirm_in_time_is_503_and_may_be_stored_later(pulsar: PulsarSettings) -> None:
    """The honest case: the answer says that it may still be stored, and it is; a second try is a second copy."""
    with serving(pulsar, {"limits": {"store_timeout": "500ms", "in_flight": 3}}) as (client, service):
        assert client.post("/topics/fleet/a/m", content=b"first").status_code == 200
        with held(pulsar):
            for number in range(3):
                late = client.post("/topics/fleet/a/m", content=b"late-%d" % number)
                assert (late.status_code, int(late.headers["retry-after"]) > 0) == (503, True)
                assert "it may still be stored" in late.json()["message"]
            full = client.post("/topics/fleet/a/m", content=b"never")
            assert (full.status_code, int(full.headers["retry-after"]) > 0) == (503, True)
            assert "was not accepted" in full.json()["message"]
            assert service.in_flight == 3
        poll_for(lambda: service.in_flight == 0, 60, "Pulsar's receipts")
        assert client.post("/topics/fleet/a/m", content=b"late-2").status_code == 200
    assert payloads(pulsar) == [b"first", b"late-0", b"late-1", b"late-2", b"late-2"]


def test_a_stop_answers_what_it_took_and_refuses_the_rest(pulsar: PulsarSettings) -> None:
    answers: list[int] = []
    with serving(pulsar, {"limits": {"store_timeout": "1m"}}) as (client, service):
        assert client.post("/topics/fleet/a/m", content=b"first").status_code == 200

        def post() -> None:
            answers.append(client.post("/topics/fleet/a/m", content=b"taken").status_code)

        thread = threading.Thread(target=post)
        with held(pulsar), socket.create_connection(service.running.listeners["http"][0], timeout=60) as half:
            half.sendall(b"POST /topics/fleet/a/m HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nha")
            thread.start()
            poll_for(lambda: service.in_flight == 1, 30, "the message to be on its way")
            service.stop()
            poll_for(lambda: not service.running.readiness()["http"]["http"], 30, "the stop")
            half.sendall(b"lf")
            assert half.recv(100).startswith(b"HTTP/1.1 503 ")
            with pytest.raises(OSError):
                socket.create_connection(service.running.listeners["http"][0], timeout=5).close()
        thread.join(patient(60))
        poll_for(service.ended.is_set, 60, "the end")
    assert answers == [200]
    assert payloads(pulsar) == [b"first", b"taken"]


def test_each_request_needs_one_of_the_tokens_and_the_file_is_reloaded(pulsar: PulsarSettings, tmp_path: Path) -> None:
    from bridge.settings.secret_file import SecretFile

    file = tmp_path / "tokens"
    file.write_text("one #\ntwo fleet/a/#\n")
    with serving(pulsar, {"tokens": SecretFile(file)}) as (client, _):

        def status(token: str) -> int:
            return client.post(
                "/topics/fleet/a/m",
                content=b"x",
                headers={"Authorization": f"Bearer {token}"} if token else {},
            ).status_code

        assert [status(t) for t in ("one", "two", "three", "")] == [200, 200, 401, 401]
        file.write_text("three fleet/#")
        poll_for(lambda: status("three") == 200, 30, "the new token")
        assert status("one") == 401
    assert set(payloads(pulsar)) == {b"x"}


@pytest.mark.parametrize("mutual", [False, True], ids=["tls", "mtls"])
def test_both_ports_at_once_and_a_certificate_that_is_replaced_while_it_runs(
    pulsar: PulsarSettings, tmp_path: Path, mutual: bool
) -> None:
    ours, theirs = trustme.CA(), trustme.CA()
    certificate, key, authority = (tmp_path / n for n in ("cert.pem", "key.pem", "ca.pem"))
    theirs.cert_pem.write_to_path(str(authority))

    def issue(ca: trustme.CA) -> None:
        issued = ca.issue_cert("127.0.0.1")
        issued.private_key_pem.write_to_path(str(key))
        certificate.write_bytes(b"".join(b.bytes() for b in issued.cert_chain_pems))

    def post(ca: trustme.CA, own: trustme.CA | None) -> int:
        context = ssl.create_default_context()
        ca.configure_trust(context)
        if own is not None:
            own.issue_cert("device@example.org").configure_cert(context)
        with httpx.Client(verify=context, timeout=60, trust_env=False) as client:
            return client.post(f"https://{address.host}:{address.port}/topics/fleet/a/m", content=b"x").status_code

    issue(ours)
    http = {"port": 0, "tls_port": 0, "tls_certificate": certificate, "tls_private_key": key}
    if mutual:
        http |= {"tls_client_ca": authority, "certificates": ({"topics": ("fleet/#",)},)}
    with running_ingest(settings_of(pulsar, http)) as service:
        plain, address = service.running.listeners["http"]
        url = f"http://{plain.host}:{plain.port}/topics/fleet/a/m"
        own = theirs if mutual else None
        assert post(ours, own) == 200
        assert httpx.post(url, content=b"plain", timeout=60, trust_env=False).status_code == 200
        if mutual:
            for stranger in (None, ours):
                with pytest.raises(httpx.TransportError):
                    post(ours, stranger)
        later = trustme.CA()
        issue(later)
        poll_for(lambda: taken(lambda: post(later, own)), 60, "the new certificate", every=0.3)
        with pytest.raises(httpx.TransportError):
            post(ours, own)
        assert httpx.post(url, content=b"plain", timeout=60, trust_env=False).status_code == 200
    assert {*payloads(pulsar)} == {b"x", b"plain"}


def taken(act: Any) -> bool:
    try:
        return bool(act() == 200)
    except httpx.TransportError:
        return False


def test_http_alone_needs_no_mqtt_client_and_drains_at_a_signal(pulsar: PulsarSettings, tmp_path: Path) -> None:
    """The command itself, in a process of its own, which says what it has imported when it ends."""
    file = tmp_path / "c.yaml"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    file.write_text(
        json.dumps(
            {
                "messaging_protocols": "http",
                "http": {"port": port},
                "pulsar": {
                    name: getattr(pulsar, name)
                    for name in ("service_url", "admin_url", "namespace", "system_namespace", "partitions")
                },
            }
        )
    )
    script = (
        "import sys, atexit\n"
        "atexit.register(lambda: print('bridge.mqtt.client' if 'bridge.mqtt.client' in sys.modules else 'no MQTT client'))\n"
        "from pulsebridge.cli.app import main; main()"
    )
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", script, "ingest", "-c", str(file)], stdout=out, stderr=out, env=os.environ
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False) as client:
            poll_for(
                lambda: taken(lambda: client.post("/topics/fleet/a/m", content=b"x").status_code) or process.poll(),
                60,
                "it",
            )
            assert client.post("/topics/fleet/a/m", content=b"x").status_code == 200, log.read_text()
            process.terminate()
            assert process.wait(patient(40)) == 0, log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert "no MQTT client" in log.read_text()


def test_the_example_of_the_readme_is_stored(pulsar: PulsarSettings) -> None:
    readme = Path(__file__).resolve().parents[3] / "docs/devices/http.md"
    (example,) = re.findall(r"^```python\n(import urllib.*?)^```$", readme.read_text(encoding="utf-8"), re.M | re.S)
    with serving(pulsar) as (client, _):
        exec(example.replace("http://127.0.0.1:8090", str(client.base_url).rstrip("/")), {})
        (found,) = stored(pulsar, "plant")
    assert found.properties[contract.P_TOPIC] == "plant/press-4/temperature"
    assert contract.decode_user_properties(found.properties[contract.P_USER]) == [("firmware", "1.2")]
