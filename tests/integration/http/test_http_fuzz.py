"""Any bytes on a connection: no exception escapes, no message that was answered 200 is missing, the rest flows on."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.ingest.service import IngestService
from bridge.protocols.handler import Address
from bridge.pulsar.admin import PulsarAdmin
from bridge.settings import Settings
from bridge.settings.http import HttpSettings
from bridge.settings.ingest import IngestSettings
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.rules import TopicRule
from pulsebridge.local.stack import LocalStack
from tests.support.ingest import dead_letters, running_ingest, stored
from tests.support.stack import provisioned

pytestmark = pytest.mark.stack

LIMIT = 2000
"""Largest body, in bytes."""

HEADERS = st.sampled_from(
    [
        *(
            b"MQTT-User-Property: a=b",
            b"MQTT-User-Property: %ff=1",
            b"MQTT-Correlation-Data: !!",
            b"MQTT-Nonsense: 1",
        ),
        *(
            b"Content-Type: text/plain",
            b"Content-Type: \xff\xfe",
            b"MQTT-Message-Expiry: -1",
            b"Connection: close",
        ),
        *(b"Expect: 100-continue", b"Transfer-Encoding: gzip", b"Upgrade: websocket", b"Content-Length: 7"),
        b"MQTT-Response-Topic: a/#",
        *(b"Origin: https://evil.example", b"Sec-Fetch-Site: cross-site", b"Host: evil.example", b"Host: "),
        *(
            b"Authorization: Bearer x",
            b"X: " + b"x" * 20_000,
            b"\r\n".join([b"A:"] * 3000),
            b"MQTT-User-Property: \xef\xbb\xbf=a",
        ),
        *(b"Content-Length: 99999999999999999999", b"Content-Length: +1", b"Transfer-Encoding: chunked"),
    ]
)
METHODS = st.sampled_from([b"POST"] * 12 + [b"GET", b"PUT", b"OPTIONS", b"HEAD", b"CONNECT", b"P\xffT"])
TARGETS = st.one_of(
    st.sampled_from([b"/topics/fleet/a/m"] * 3 + [b"/topics/", b"/topics", b"*", b"/%74opics/x", b"http://x/topics/a"]),
    st.binary(max_size=30).map(lambda b: b"/topics/fuzz/" + b),
    st.text(max_size=20).map(
        lambda t: b"/topics/" + b"".join(b"%%%02X" % c for c in t.encode("utf-8", "surrogatepass"))
    ),
)
QUERIES = st.sampled_from(
    [b""] * 4 + [b"?qos=0", b"?qos=1", b"?qos=9", b"?retain=true", b"?%ff", b"?qos=1&x", b"?" + b"a" * 99]
)


@dataclass
class Fuzzed:
    address: Address
    service: IngestService
    pulsar: PulsarSettings
    faults: list[Any]
    """What the event loop had to report: exceptions that escaped from a connection."""
    sent: int = 0
    promised: set[bytes] = field(default_factory=set)
    possible: set[bytes] = field(default_factory=set)


@pytest.fixture(scope="module")
def server(stack: LocalStack) -> Iterator[Fuzzed]:
    pulsar = provisioned(stack, partitions=1)
    with PulsarAdmin(pulsar, timeout_s=30) as admin:
        for local in ("fleet", "the-only-one-without-a-rule"):
            admin.create_partitioned(pulsar.readings_topic(local), 1)
    rule = TopicRule(name="fleet", filter="fleet/+device/#", topic="fleet", device="{device}")
    made = Settings(
        messaging_protocols=("http",),
        pulsar=pulsar,
        http=HttpSettings(port=0, limits={"body_size": f"{LIMIT}B", "read_timeout": "2s"}),
        ingest=IngestSettings(routes=(rule,), limits={"topics": 1}),  # everything else is a dead letter
    )
    with running_ingest(made) as service:
        faults: list[Any] = []
        service.loop.set_exception_handler(lambda _loop, context: faults.append(context))
        yield Fuzzed(service.running.listeners["http"][0], service, pulsar, faults)


def exchange(address: Address, data: bytes, pieces: Sequence[int] = ()) -> bytes:
    """Send bytes, the first ones in ``pieces``, end our side, and return everything that is answered."""
    answer = b""
    with socket.create_connection(address, timeout=30) as raw:
        try:
            for size in pieces:
                raw.sendall(data[:size])
                data = data[size:]
            raw.sendall(data)
            raw.shutdown(socket.SHUT_WR)
            while chunk := raw.recv(65536):
                answer += chunk
        except ConnectionError:
            pass  # cut while we were still sending
    return answer


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    method=METHODS,
    target=TARGETS,
    query=QUERIES,
    headers=st.lists(HEADERS, max_size=3),
    size=st.sampled_from([0, 1, 100, LIMIT - 20, LIMIT, LIMIT + 1, 3 * LIMIT]),
    framing=st.sampled_from(["length", "length", "length", "chunked", "none", "longer", "shorter"]),
    mutation=st.none() | st.tuples(st.integers(0, 300), st.binary(min_size=1, max_size=3)),
    cut=st.none() | st.integers(0, 400),
)
def test_requests_that_are_bent_and_cut_lose_nothing_that_was_promised(
    server: Fuzzed,
    method: bytes,
    target: bytes,
    query: bytes,
    headers: list[bytes],
    size: int,
    framing: str,
    mutation: tuple[int, bytes] | None,
    cut: int | None,
) -> None:
    server.sent += 1
    body = b"<%d>" % server.sent
    body = body.ljust(size, b".")
    lines = [method + b" " + target + query + b" HTTP/1.1", b"Host: localhost", *headers]
    if framing == "chunked":
        lines.append(b"Transfer-Encoding: chunked")
    elif framing != "none":
        lines.append(b"Content-Length: %d" % (len(body) + {"longer": 5, "shorter": -1}.get(framing, 0)))
    framed = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if framing == "chunked" else body
    data = b"\r\n".join(lines) + b"\r\n\r\n" + framed
    if mutation is not None:
        data = data[: mutation[0]] + mutation[1] + data[mutation[0] + len(mutation[1]) :]
    answer = exchange(server.address, data if cut is None else data[:cut])
    first = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
    assert first or answer == b"", answer[:200]
    assert not answer.startswith(b"HTTP/1.1 500"), (data, answer)
    if b'{"message":"OK"}' in answer and mutation is None and framing == "length":
        server.promised.add(body)
    # It lives on: the next message of a well-behaved device is stored.
    good = b"[%d]" % server.sent
    plain = b"POST /topics/fleet/a/m HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
    assert exchange(server.address, plain % (len(good), good)).startswith(b"HTTP/1.1 200 ")
    server.promised.add(good)


@settings(max_examples=100, deadline=None)
@given(
    data=st.binary(max_size=400),
    start=st.sampled_from([b"", b"POST /topics/fleet/a/m HTTP/1.1\r\n", b"\x16\x03\x01"]),
)
def test_any_bytes_are_answered_or_cut(server: Fuzzed, data: bytes, start: bytes) -> None:
    answer = exchange(server.address, start + data)
    assert answer == b"" or answer.startswith(b"HTTP/1.")
    assert b" 500 " not in answer[:20]


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(
        st.tuples(
            st.sampled_from([b"/topics/fleet/p/m?qos=0", b"/topics/fleet/p/m", b"/topics/", b"/", b"/topics/%FF"]),
            METHODS,
            st.sampled_from([0, 1, 200, LIMIT + 1]),
            st.booleans(),
        ),
        min_size=1,
        max_size=300,
    ),
    pieces=st.lists(st.integers(1, 20_000), max_size=4),
)
def test_pipelined_requests_in_any_pieces_get_one_answer_each_in_order(
    server: Fuzzed, requests: list[tuple[bytes, bytes, int, bool]], pieces: list[int]
) -> None:
    line = b"%s %s HTTP/1.1\r\nHost: localhost\r\n"
    data = b"".join(
        line % (method, target)
        + (
            b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (size, b"p" * size)
            if chunked and size
            else b"Content-Length: %d\r\n\r\n%s" % (size, b"p" * size)
        )
        for target, method, size, chunked in requests
    )
    answer = exchange(server.address, data, pieces)
    statuses = re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)
    assert len(statuses) <= len(requests)
    assert not set(statuses) & {b"500"}, statuses
    # All but the last one go on: that a request was refused ends the connection.
    assert set(statuses[:-1]) <= {b"200", b"202", b"503", b"400"}, statuses


@pytest.fixture(scope="module", autouse=True)
def _nothing_promised_is_missing(server: Fuzzed) -> Iterator[None]:
    """At the end of the module, every message answered 200 is in Pulsar, and no message remains in flight."""
    yield
    held = {m.payload for m in stored(server.pulsar, "fleet")} | {m.payload for m in dead_letters(server.pulsar)}
    assert server.promised - held == set()
    assert server.service.in_flight == 0
    assert not server.service.ended.is_set()
    assert server.faults == []
