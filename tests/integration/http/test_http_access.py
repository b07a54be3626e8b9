"""Rights over HTTP: web pages, tokens and certificates of one device, and revoked credentials."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from bridge.contract import RESUME_TOPIC
from bridge.ingest.service import IngestService
from bridge.protocols.handler import Address
from bridge.pulsar.admin import PulsarAdmin
from bridge.settings import Settings
from bridge.settings.http import HttpSettings
from bridge.settings.ingest import IngestSettings
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.rules import TopicRule
from bridge.settings.secret_file import SecretFile
from pulsebridge.local.stack import LocalStack
from tests.support.certificates import Authority, Pem
from tests.support.ingest import running_ingest, stored
from tests.support.stack import provisioned
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack

RULE = TopicRule(name="fleet", filter="fleet/+device/+metric", topic="fleet", device="{device}")
TOPIC = "/topics/fleet/a/m"


@pytest.fixture
def pulsar(stack: LocalStack) -> PulsarSettings:
    made = provisioned(stack, partitions=1)
    with PulsarAdmin(made, timeout_s=30) as admin:
        admin.create_partitioned(made.readings_topic("fleet"), 1)
    return made


@contextmanager
def serving(pulsar: PulsarSettings, **http: Any) -> Iterator[tuple[httpx.Client, IngestService]]:
    settings = Settings(
        messaging_protocols=("http",),
        pulsar=pulsar,
        http=HttpSettings(**({"port": 0} | http)),
        ingest=IngestSettings(routes=(RULE,)),
    )
    with running_ingest(settings) as service:
        address = service.running.listeners["http"][0]
        url = f"http://{address.host}:{address.port}"
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
            yield client, service


def payloads(pulsar: PulsarSettings) -> list[bytes]:
    return [m.payload for m in stored(pulsar, "fleet")]


def test_h40_a_web_page_publishes_nothing_through_a_listener_without_tokens(pulsar: PulsarSettings) -> None:
    plain = {"Content-Type": "text/plain"}  # a page sends it without asking
    with serving(pulsar) as (client, _):

        def status(**headers: str) -> int:
            sent = plain | {name.replace("_", "-"): value for name, value in headers.items()}
            return client.post(TOPIC, content=b"of a page", headers=sent).status_code

        assert status(Origin="https://evil.example") == 403
        assert status(Origin="null") == 403
        assert status(Sec_Fetch_Site="cross-site") == 403
        assert status(Host="evil.example") == 403  # its name leads to 127.0.0.1 by now
        assert status(Host="evil.example", Origin="http://evil.example") == 403
        assert client.post(TOPIC, content=b"of a device", headers=plain).status_code == 200
    allowed = {"allowed_origins": ("https://panel.example",), "allowed_hosts": ("gateway.example",)}
    with serving(pulsar, **allowed) as (client, _):
        headers = {"Host": "gateway.example", "Origin": "https://panel.example"}
        assert client.post(TOPIC, content=b"of the panel", headers=headers).status_code == 200
    assert payloads(pulsar) == [b"of a device", b"of the panel"]


def test_h40_a_token_is_valid_for_the_topics_of_its_line_alone(pulsar: PulsarSettings, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("# line by line\none fleet/a/# fleet/+/state\ngateway #\n")
    with serving(pulsar, tokens=SecretFile(file)) as (client, _):

        def answer(token: str, topic: str) -> httpx.Response:
            headers = {"Authorization": f"Bearer {token}"}
            return client.post(f"/topics/{topic}", content=topic.encode(), headers=headers)

        refused = [answer("one", t) for t in ("fleet/b/m", "fleet/ab/m", "fleet", "fleet%2Fb%2Fm")]
        assert [one.status_code for one in refused] == [403] * 4
        assert "does not allow the topic" in refused[0].json()["message"]
        taken = [answer("one", "fleet/a/m"), answer("one", "fleet/b/state"), answer("gateway", "fleet/b/m")]
        assert [one.status_code for one in taken] == [200] * 3
    assert payloads(pulsar) == [b"fleet/a/m", b"fleet/b/state", b"fleet/b/m"]


def test_h40_requests_to_resume_are_taken_if_allowed_and_for_ones_own_device(pulsar: PulsarSettings) -> None:
    def status(client: httpx.Client, device: str) -> int:
        return client.post(
            f"/topics/pulsebridge/resume/{device}",
            content=device.encode(),
            headers={"Authorization": "Bearer one"},
        ).status_code

    with serving(pulsar, tokens="one #") as (client, _):
        assert status(client, "a") == 403
        refused = client.post("/topics/pulsebridge/resume/a", content=b"a", headers={"Authorization": "Bearer one"})
        assert "http.allow_resume" in refused.json()["message"]
    with serving(pulsar, tokens="one pulsebridge/resume/a", allow_resume=True) as (client, _):
        assert [status(client, device) for device in ("b", "a")] == [403, 200]
    assert [m.payload for m in stored(pulsar, pulsar.system_topic(RESUME_TOPIC))] == [b"a"]


class Mutual:
    """A server with mTLS, and clients of several authorities."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.servers, self.old, self.new = (Authority(folder, name) for name in ("servers", "old", "new"))
        self.server = self.servers.issue("server")
        self.trusted = folder / "trusted.pem"
        self.trust(self.old)

    def trust(self, *authorities: Authority) -> None:
        self.trusted.write_bytes(b"".join(one.file.read_bytes() for one in authorities))

    @property
    def http(self) -> dict[str, Any]:
        return {
            "port": None,
            "tls_port": 0,
            "tls_client_ca": self.trusted,
            "tls_certificate": self.server.certificate,
            "tls_private_key": self.server.key,
        }

    def context(self, pem: Pem) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.servers.file))
        context.load_cert_chain(pem.certificate, pem.key)
        return context

    def connect(
        self, address: Address, context: ssl.SSLContext, session: ssl.SSLSession | None = None
    ) -> ssl.SSLSocket:
        raw = socket.create_connection(address, timeout=30)
        return context.wrap_socket(raw, server_hostname="127.0.0.1", session=session)

    def status(self, address: Address, context: ssl.SSLContext, **with_: Any) -> int:
        """Return the status of a POST on a new connection, 0 if the server ends it before."""
        try:
            with self.connect(address, context, with_.get("session")) as connection:
                return posted(connection)
        except (ssl.SSLError, ConnectionError):
            return 0


def posted(connection: socket.socket, device: str = "a", body: bytes = b"x", headers: str = "") -> int:
    """Return the status of a POST, 0 when the connection is closed instead."""
    head = f"POST /topics/fleet/{device}/m HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    answer = connection.recv(1000)
    return int(answer.split(b" ")[1]) if answer else 0


def test_h40_a_client_certificate_is_valid_for_its_own_device_and_no_page_uses_it(
    pulsar: PulsarSettings, tmp_path: Path
) -> None:
    world = Mutual(tmp_path)
    seven = world.context(world.old.issue("seven", "seven.example", common_name="device-7"))
    gateway = world.context(world.old.issue("gateway", "gateway.example", common_name="gateway"))
    topics = ({"name": "gateway", "topics": ("#",)}, {"topics": ("fleet/{name}/#",)})
    with serving(pulsar, **world.http, certificates=topics) as (_, service):
        address = service.running.listeners["http"][0]
        for device, expected in (("device-7", 200), ("seven.example", 200), ("device-8", 403)):
            with world.connect(address, seven) as connection:
                assert posted(connection, device) == expected, device
        with world.connect(address, gateway) as connection:
            assert posted(connection, "device-8") == 200
            assert posted(connection, "device-8", headers="Origin: https://evil.example\r\n") == 403
    assert len(payloads(pulsar)) == 3


def test_h41_a_removed_authority_is_trusted_no_more(pulsar: PulsarSettings, tmp_path: Path) -> None:
    world = Mutual(tmp_path)
    former, current = (world.context(one.issue("device")) for one in (world.old, world.new))
    http = world.http | {"certificates": ({"topics": ("fleet/#",)},)}
    with serving(pulsar, **http) as (_, service):
        address = service.running.listeners["http"][0]
        assert (world.status(address, former), world.status(address, current)) == (200, 0)
        with world.connect(address, former) as open_since, world.connect(address, former) as half:
            assert posted(open_since) == 200
            session = open_since.session  # its holder could resume it without a certificate
            half.sendall(b"POST /topics/fleet/a/m HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nla")
            world.trust(world.new)
            poll_for(lambda: world.status(address, current) == 200, 60, "the new authority")
            before = len(payloads(pulsar))
            assert world.status(address, former) == 0
            assert world.status(address, former, session=session) == 0
            with suppress(ssl.SSLError, ConnectionError):
                assert posted(open_since) == 0
            with suppress(ssl.SSLError, ConnectionError):
                half.sendall(b"te")
                assert half.recv(1000) == b""
        assert len(payloads(pulsar)) == before


def test_h41_a_removed_token_counts_no_more_on_any_connection(pulsar: PulsarSettings, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("one #\ntwo #\n")
    with serving(pulsar, tokens=SecretFile(file)) as (client, service):
        address = service.running.listeners["http"][0]
        with socket.create_connection(address, timeout=30) as kept, socket.create_connection(address) as half:
            half.settimeout(30)
            assert posted(kept, headers="Authorization: Bearer one\r\n") == 200
            head = "POST /topics/fleet/a/m HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer one\r\n"
            half.sendall(head.encode() + b"Content-Length: 4\r\n\r\nla")
            file.write_text("two #\n")
            for token, expected in (("one", 401), ("two", 200)):
                headers = {"Authorization": f"Bearer {token}"}
                poll_for(
                    lambda headers=headers, expected=expected: (  # type: ignore[misc]
                        client.post(TOPIC, content=b"x", headers=headers).status_code == expected
                    ),
                    30,
                    f"{expected} for {token}",
                )
            assert posted(kept, headers="Authorization: Bearer one\r\n") == 401
            half.sendall(b"te")
            answer = half.recv(1000)
            assert answer.startswith(b"HTTP/1.1 401 "), answer
            assert "token" in json.loads(answer.partition(b"\r\n\r\n")[2] or half.recv(1000))["message"]
    assert b"late" not in payloads(pulsar)
