"""Answers of Pulsar's admin that pass by themselves."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from pydantic import SecretStr

from bridge.errors import RefusedError, TransientError, UnreachableError
from bridge.intake.provisioning import verify_policies
from bridge.pulsar import admin as pulsar_admin
from bridge.pulsar.admin import PulsarAdmin
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.local.ports import free_ports
from tests.support.certificates import Authority, Pem

NOT_NOW = "Unable to find position for position specified: unable to persist readPosition for cursor reset 756:87"
"""As Pulsar 4.0.8 answered a reset of a cursor, seconds after it had been killed and started again."""


class _Handler(BaseHTTPRequestHandler):
    def answer(self, status: int, body: bytes = b"", location: str = "") -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(status)
        if location:
            self.send_header("Location", location)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        pass


@contextmanager
def server_of(handler: type[_Handler], certificate: Pem | None = None) -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.certificate, certificate.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"{'http' if certificate is None else 'https'}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def admin_at(handler: type[_Handler]) -> Iterator[PulsarAdmin]:
    with server_of(handler) as url, PulsarAdmin(PulsarSettings(admin_url=url)) as admin:
        yield admin


@contextmanager
def admin_that_answers(text: str, times: int) -> Iterator[tuple[PulsarAdmin, list[str]]]:
    """An admin that answers 412 with a text so many times, then 204; and the requests that came."""
    came: list[str] = []

    class Handler(_Handler):
        def do_POST(self) -> None:
            came.append(self.path)
            body = f'{{"reason": "{text}"}}'.encode() if len(came) <= times else b""
            self.answer(412 if body else 204, body)

    with admin_at(Handler) as admin:
        yield admin, came


@pytest.mark.parametrize("text", [NOT_NOW, "Subscription Busy"])
def test_a_cursor_that_cannot_be_moved_now_is_asked_for_again(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulsar_admin, "_BUSY_WAIT_S", 0.001)
    with admin_that_answers(text, 3) as (admin, came):
        admin.request("POST", "/there/resetcursor")
        assert len(came) == 4
    with admin_that_answers(text, 100) as (admin, _), pytest.raises(TransientError, match="cannot be moved"):
        admin.request("POST", "/there/resetcursor")


def test_another_412_is_refused_at_once() -> None:
    with admin_that_answers("Position is not there", 1) as (admin, came):
        with pytest.raises(RefusedError, match="Position is not there"):
            admin.request("POST", "/there/resetcursor")
        assert len(came) == 1


def test_a_redirect_to_the_owner_of_a_topic_keeps_method_body_and_token() -> None:
    came: list[tuple[str | None, bytes]] = []

    class Owner(_Handler):
        def do_PUT(self) -> None:
            came.append((self.headers["Authorization"], self.rfile.read(int(self.headers["Content-Length"]))))
            del self.headers["Content-Length"]  # it is read
            self.answer(200, b'"done"')

    with server_of(Owner) as owner:

        class Other(_Handler):
            def do_PUT(self) -> None:
                self.answer(307, location=f"{owner}{self.path}")

        with server_of(Other) as url, PulsarAdmin(PulsarSettings(admin_url=url, token=SecretStr("t"))) as admin:
            assert admin.request("PUT", "/a", body={"b": 1}) == "done"
    assert came == [("Bearer t", b'{"b":1}')]


def test_a_token_is_not_sent_over_a_redirect_from_https_to_http(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ours")
    came: list[str] = []

    class Plain(_Handler):
        def do_GET(self) -> None:
            came.append(self.path)
            self.answer(200)

    with server_of(Plain) as plain:

        class Secure(_Handler):
            def do_GET(self) -> None:
                self.answer(307, location=f"{plain}{self.path}")

        with server_of(Secure, authority.issue("server")) as url:
            settings = PulsarSettings(admin_url=url, token=SecretStr("t"), tls_ca=authority.file)
            with PulsarAdmin(settings) as admin, pytest.raises(RefusedError, match="without TLS"):
                admin.request("GET", "/a")
    assert came == []


def test_an_endless_redirect_is_an_error() -> None:
    class Handler(_Handler):
        def do_GET(self) -> None:
            self.answer(307, location=self.path)

    with admin_at(Handler) as admin, pytest.raises(UnreachableError, match="redirects"):
        admin.request("GET", "/a")


def test_h54_policies_that_are_set_and_not_visible_yet_do_not_count_as_missing() -> None:
    """Ingest and push start together on fresh namespaces; Pulsar answers a read from a cache for a moment."""
    read: Counter[str] = Counter()
    visible = {
        "retention_policies": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
        "inactive_topic_policies": {"deleteWhileInactive": False},
        "autoTopicCreationOverride": {"allowAutoTopicCreation": False},
    }

    class Handler(_Handler):
        def do_GET(self) -> None:
            if self.path.count("/") < 5:  # clusters, namespaces of a tenant
                return self.answer(200, b'["standalone"]')
            read[self.path] += 1
            return self.answer(200, json.dumps(visible if read[self.path] > 3 else {}).encode())

        def do_POST(self) -> None:
            self.answer(204)

        do_PUT = do_DELETE = do_POST

    with admin_at(Handler) as admin:
        admin.provision_namespaces()
        verify_policies(admin)
    assert len(read) == 2


@pytest.mark.thorough
def test_h54_a_pulsar_that_has_just_started_names_its_cluster_before_a_tenant_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It passes its health check before that, and answers 412 to a tenant without a cluster."""
    asked: list[str] = []
    made: list[dict[str, list[str]]] = []
    ready_after = 3

    class Handler(_Handler):
        def do_GET(self) -> None:
            if self.path.endswith("/clusters"):
                asked.append(self.path)
                return self.answer(200, b'["standalone"]' if len(asked) > ready_after else b"[]")
            there = self.path.count("/") > 4  # the policies of a namespace, which is made by then
            return self.answer(200 if there else 404, b"{}")

        def do_PUT(self) -> None:
            if "/tenants/" in self.path:
                made.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                del self.headers["Content-Length"]  # it is read
            self.answer(204)

        def do_POST(self) -> None:
            self.answer(204)

        do_DELETE = do_POST

    with admin_at(Handler) as admin:
        admin.provision_namespaces()
        assert made[0]["allowedClusters"] == ["standalone"]
        asked.clear()
        ready_after = 10**6
        monkeypatch.setattr(pulsar_admin, "_VISIBLE_S", 0.2)
        with pytest.raises(TransientError, match="not finished its start"):
            admin.clusters()


# --- several hosts (H53) ---


class _Live(_Handler):
    def do_GET(self) -> None:
        self.answer(200, b'"live"')

    def do_PUT(self) -> None:
        self.answer(200, b'"done"')


@contextmanager
def hosts(*urls: str, **more: object) -> Iterator[PulsarAdmin]:
    names = ",".join(url.removeprefix("http://") for url in urls)
    with PulsarAdmin(PulsarSettings(admin_url=f"http://{names}"), **more) as admin:  # type: ignore[arg-type]
        yield admin


def test_a_request_goes_to_the_next_host_where_one_is_down() -> None:
    (closed,) = free_ports(1)
    with server_of(_Live) as live:
        for method in ("GET", "PUT"):
            with hosts(f"http://127.0.0.1:{closed}", live) as admin:
                assert admin.request(method, "/a") in ("live", "done")
        with hosts(f"http://127.0.0.1:{closed}") as admin, pytest.raises(UnreachableError, match=f"{closed} cannot"):
            admin.request("GET", "/a")


def test_a_host_that_hangs_may_have_done_what_is_no_get_and_is_waited_for_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging, server_of(_Live) as live:
        url = f"http://127.0.0.1:{hanging.getsockname()[1]}"
        with hosts(url, live, timeout_s=0.2) as admin:
            with pytest.raises(UnreachableError, match=f"{url} cannot be reached"):
                admin.request("PUT", "/a")
            assert admin.request("PUT", "/a") == "done"
            assert admin.request("GET", "/a") == "live"
        with hosts(url, live, timeout_s=30.0) as another:
            assert another.request("GET", "/a") == "live"


def test_a_get_goes_to_the_next_host_where_one_hangs_or_fails() -> None:
    class Failing(_Handler):
        def do_GET(self) -> None:
            self.answer(503)

    with socket.create_server(("127.0.0.1", 0)) as hanging, server_of(Failing) as failing, server_of(_Live) as live:
        with hosts(f"http://127.0.0.1:{hanging.getsockname()[1]}", failing, live, timeout_s=0.2) as admin:
            assert admin.request("GET", "/a") == "live"
        with hosts(failing) as admin, pytest.raises(TransientError, match=f"{failing} answered 503"):
            admin.request("GET", "/a")


def test_an_owner_that_is_down_is_named_and_not_the_host_that_redirects_to_it() -> None:
    (closed,) = free_ports(1)

    class Other(_Handler):
        def do_GET(self) -> None:
            self.answer(307, location=f"http://127.0.0.1:{closed}{self.path}")

    match = f"127.0.0.1:{closed} cannot be reached"
    with server_of(Other) as first, server_of(_Live) as second, hosts(first, second) as admin:  # noqa: SIM117
        with pytest.raises(UnreachableError, match=match):
            admin.request("GET", "/a")
