"""Clients without a token that occupy what they can: memory, connections, descriptors, handshakes, time."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from bridge.protocols.handler import Address
from bridge.pulsar.admin import PulsarAdmin
from bridge.settings import Settings
from bridge.settings.http import HttpSettings
from bridge.settings.ingest import IngestSettings
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.rules import TopicRule
from pulsebridge.local.stack import LocalStack
from tests.support.certificates import Authority
from tests.support.http_ingest import answered, http_process
from tests.support.ingest import running_ingest, stored
from tests.support.memory import peak_memory
from tests.support.stack import provisioned
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack

RULE = {"name": "fleet", "filter": "fleet/+device/+metric", "topic": "fleet", "device": "{device}"}
HEAD = b"POST /topics/fleet/a/m HTTP/1.1\r\nHost: localhost\r\n"
MB = 1024 * 1024


@pytest.fixture
def pulsar(stack: LocalStack) -> PulsarSettings:
    made = provisioned(stack, partitions=1)
    with PulsarAdmin(made, timeout_s=30) as admin:
        admin.create_partitioned(made.readings_topic("fleet"), 1)
    return made


@pytest.fixture
def connections() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def opened(connections: ExitStack, address: Address) -> socket.socket:
    return connections.enter_context(socket.create_connection(address, timeout=30))


def sent(raw: socket.socket, data: bytes) -> None:
    """Send what the server takes; it may close at any time."""
    raw.settimeout(0.5)
    with suppress(OSError):
        raw.sendall(data)


def test_h39_two_thousand_half_requests_use_little_memory_and_no_slots(
    pulsar: PulsarSettings, tmp_path: Path, connections: ExitStack
) -> None:
    """Heads that do not end, and whole heads without a token whose bodies are under way."""
    tokens = tmp_path / "tokens"
    tokens.write_text("secret #\n")
    http = {"limits": {"connections": 100}, "tokens_file": str(tokens)}
    half = HEAD + b"MQTT-User-Property: a=" + b"x" * 240_000
    body = HEAD + b"Content-Length: 4000000\r\n\r\n" + b"x" * 200_000
    with http_process(pulsar, tmp_path, http, {"routes": [RULE]}) as (process, address):
        good = {"Authorization": "Bearer secret"}
        assert answered(address, "/topics/fleet/a/m", b"before", **good) == 200
        before = peak_memory(process.pid)
        for number in range(2000):
            sent(opened(connections, address), half if number % 2 else body)
        grown = peak_memory(process.pid) - before
        assert grown < 24 * MB, f"{grown / MB:.0f} MB"
        connections.close()
        poll_for(lambda: answered(address, "/topics/fleet/a/m", b"after", **good) == 200, 60, "room")
    assert [m.payload for m in stored(pulsar, "fleet")] == [b"before", b"after"]


def test_h39_connections_leave_descriptors_to_mqtt_and_pulsar(
    pulsar: PulsarSettings, tmp_path: Path, connections: ExitStack
) -> None:
    limit, http = 400, {"limits": {"connections": 10_000, "first_request_timeout": "1m"}}
    with http_process(pulsar, tmp_path, http, {"routes": [RULE]}) as (process, address):
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (limit, limit))
        for _ in range(2 * limit):
            opened(connections, address)
        server = psutil.Process(process.pid)
        poll_for(lambda: server.num_fds() > limit // 2, 30, "the connections")
        # Each of these waits behind all that were opened before it.
        refused = poll_for(lambda: answered(address, "/topics/fleet/a/m") in (0, 503), 30, "the last one")
        assert refused
        assert server.num_fds() <= limit - limit // 4 + 10
        connections.close()
        poll_for(lambda: answered(address, "/topics/fleet/a/m", b"x") == 200, 60, "room")


def settings_of(pulsar: PulsarSettings, http: dict[str, Any], **ingest: Any) -> Settings:
    return Settings(
        messaging_protocols=("http",),
        pulsar=pulsar,
        http=HttpSettings(**http),
        ingest=IngestSettings(routes=(TopicRule(**RULE),), **ingest),
    )


def test_h39_tls_handshakes_that_never_end_count_as_connections_and_are_cut(
    pulsar: PulsarSettings, tmp_path: Path, connections: ExitStack
) -> None:
    pem = Authority(tmp_path, "servers").issue("server")
    http = {
        "port": None,
        "tls_port": 0,
        "tls_certificate": pem.certificate,
        "tls_private_key": pem.key,
        "limits": {"connections": 5, "first_request_timeout": "2s"},
    }
    with running_ingest(settings_of(pulsar, http)) as service:
        address = service.running.listeners["http"][0]
        silent = [opened(connections, address) for _ in range(5)]
        silent[0].sendall(b"\x16\x03\x01")
        assert opened(connections, address).recv(1) == b""  # no room
        for one in silent:
            with suppress(ConnectionError):
                assert one.recv(100) == b""


def test_a_head_and_a_body_that_drip_have_one_time_for_the_whole(
    pulsar: PulsarSettings, connections: ExitStack
) -> None:
    http = {"port": 0, "limits": {"first_request_timeout": "1s", "read_timeout": "1s"}}
    with running_ingest(settings_of(pulsar, http)) as service:
        address = service.running.listeners["http"][0]
        drip = {
            opened(connections, address): HEAD + b"X: ",
            opened(connections, address): HEAD + b"Content-Length: 1000\r\n\r\n",
        }
        answers = dict.fromkeys(drip, b"")
        for raw, begun in drip.items():
            raw.sendall(begun)
            raw.settimeout(0.1)

        def cut(raw: socket.socket) -> bool:
            try:
                raw.send(b"x")
                answers[raw] += (chunk := raw.recv(1000))
            except TimeoutError:
                return False
            except OSError:
                return True
            return chunk == b""

        for raw in drip:
            poll_for(lambda raw=raw: cut(raw), 30, "the end")  # type: ignore[misc]
        head, body = answers.values()
        assert head == b""
        assert body.startswith(b"HTTP/1.1 408 ")


def test_h39_bodies_share_a_bound_and_are_not_read_before_they_may_be(
    pulsar: PulsarSettings, connections: ExitStack
) -> None:
    http = {"port": 0, "tokens": "secret fleet/a/#", "limits": {"body_size": f"{8 * MB}B"}}
    with running_ingest(settings_of(pulsar, http, limits={"in_flight_size": f"{MB}B"})) as service:
        address = service.running.listeners["http"][0]
        expects = b"Expect: 100-continue\r\nContent-Length: 700000\r\n"
        bearer = b"Authorization: Bearer secret\r\n"

        def begun(head: bytes) -> socket.socket:
            raw = opened(connections, address)
            raw.sendall(head + b"\r\n")
            return raw

        assert begun(HEAD + expects).recv(100).startswith(b"HTTP/1.1 401 ")
        other = HEAD.replace(b"fleet/a/", b"fleet/b/")
        assert begun(other + expects + bearer).recv(100).startswith(b"HTTP/1.1 403 ")
        first, second = (begun(HEAD + expects + bearer) for _ in range(2))
        for raw in (first, second):
            assert raw.recv(100).startswith(b"HTTP/1.1 100 ")
            sent(raw, b"x" * 650_000)
        ready = poll_for(lambda: [r for r in (first, second) if _readable(r)], 30, "a refusal")
        assert ready[0].recv(100).startswith(b"HTTP/1.1 503 ")
        (rest,) = {first, second} - {ready[0]}
        rest.settimeout(30)
        rest.sendall(b"x" * 50_000)
        assert rest.recv(100).startswith(b"HTTP/1.1 200 ")


def _readable(raw: socket.socket) -> bool:
    raw.settimeout(0.05)
    try:
        return raw.recv(1, socket.MSG_PEEK) != b""
    except TimeoutError:
        return False
