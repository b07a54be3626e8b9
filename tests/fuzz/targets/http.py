"""Bytes on the HTTP listener, whole, bent and cut, through the handler and its sockets; what is taken is only noted."""

from __future__ import annotations

import itertools
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any, Final

from hypothesis import strategies as st

from bridge.health import Health
from bridge.http.handler import HttpHandler
from bridge.protocols.handler import Address
from bridge.protocols.listening import Listening
from bridge.protocols.running import Phase, Running
from bridge.settings import Settings
from tests.fuzz.engine import Case, Check, Target
from tests.support.http_intake import StoredAtOnce

__all__ = ["HTTP", "LIMIT", "encoded", "requests"]

LIMIT: Final = 2000
"""Largest body, in bytes."""

_HEADERS: Final = st.sampled_from(
    [
        b"MQTT-User-Property: a=b", b"MQTT-User-Property: %ff=1", b"MQTT-User-Property: \xef\xbb\xbf=%EF%BB%BF", b"MQTT-Correlation-Data: !!",
        b"MQTT-Nonsense: 1", b"Content-Type: text/plain", b"Content-Type: \xff\xfe", b"MQTT-Message-Expiry: -1", b"Connection: close",
        b"Expect: 100-continue", b"Transfer-Encoding: gzip", b"Upgrade: websocket", b"Content-Length: 7", b"Content-Length: " + b"9" * 5000,
        b"Content-Length: -1", b"MQTT-Response-Topic: a/#", b"Authorization: Bearer x", b"Authorization: \xff", b"Host: y", b": x", b"A" * 3000 + b": x",
        b"X: " + b"b" * 70_000, b"x-amz-mqtt5-user-properties: W10=", b"x-amz-mqtt5-user-properties: W3siYSI6Ilx1ZDgwMCJ9XQ==",
        b"x-amz-mqtt5-user-properties: " + b"W1tb" * 9000, b"Transfer-Encoding: chunked", b"MQTT-Payload-Format: 1", b"X:\x00",
    ]
)  # fmt: skip
_POSITION: Final = b"0.3.7.1.-1.AAAAAAAAAAAAAAAA"
_METHODS: Final = st.sampled_from(
    [b"POST"] * 12 + [b"GET"] * 3 + [b"PUT", b"OPTIONS", b"HEAD", b"CONNECT", b"P\xffT", b"PRI"]
)
_TARGETS: Final = st.one_of(
    st.sampled_from([b"/topics/fleet/a/m"] * 3 + [b"/topics/", b"/topics", b"*", b"/%74opics/x", b"http://x/topics/a", b"//topics/a", b"/topics/../x", b"/topics/" + b"a" * 70_000, b"/topics/%ef%bb%bf", b"/topics/%00", b"/topics/%ed%a0%80"]),
    st.sampled_from([b"/devices/d/commands", b"/devices/d/commands?wait=1&after=x", b"/devices/%ff/commands", b"/devices/d/commands/" + _POSITION, b"/devices//commands/"]),
    st.binary(max_size=30).map(lambda b: b"/topics/fuzz/" + b),
    st.binary(max_size=30).map(lambda b: b"/devices/" + b + b"/commands"),
    st.text(max_size=20).map(lambda t: b"/topics/" + b"".join(b"%%%02X" % c for c in t.encode("utf-8", "surrogatepass"))),
)  # fmt: skip
_QUERIES: Final = st.sampled_from(
    [b""] * 4 + [b"?qos=0", b"?qos=1", b"?qos=9", b"?retain=true", b"?%ff", b"?qos=1&x", b"?" + b"a" * 99, b"?contentType=%00", b"?messageExpiry=" + b"9" * 5000]
)  # fmt: skip


_RIGHT: Final[dict[str, Any]] = {
    "method": b"POST", "target": b"/topics/fleet/a/m", "query": b"", "headers": [], "size": 100, "framing": "length", "mutation": None, "cut": None,
}  # fmt: skip
_WRONG: Final[dict[str, st.SearchStrategy[Any]]] = {
    "method": _METHODS,
    "target": _TARGETS,
    "query": _QUERIES,
    "headers": st.lists(_HEADERS, min_size=1, max_size=3),
    "size": st.sampled_from([0, 1, LIMIT - 20, LIMIT, LIMIT + 1, 3 * LIMIT]),
    "framing": st.sampled_from(["chunked", "none", "longer", "shorter"]),
    "mutation": st.tuples(st.integers(0, 300), st.binary(min_size=1, max_size=3)),
    "cut": st.integers(0, 400),
    "origin": st.sampled_from([b"http://evil.example", b"null", b"\xff"]),
    "host": st.sampled_from([b"evil.example", b"127.0.0.1.evil.example", b"", b"localhost@evil.example"]),
}


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """A request that is right but for up to three of its parts."""
    names = draw(st.lists(st.sampled_from(sorted(_WRONG)), unique=True, max_size=3))
    return _RIGHT | {name: draw(_WRONG[name]) for name in names}


def encoded(one: dict[str, Any], body: bytes, host: bytes) -> bytes:
    """Return a request as its bytes."""
    body = body.ljust(one["size"], b".")
    lines = [
        one["method"] + b" " + one["target"] + one["query"] + b" HTTP/1.1",
        b"Host: " + one.get("host", host),
        *one["headers"],
    ]
    if "origin" in one:
        lines.append(b"Origin: " + one["origin"])
    if one["framing"] == "chunked":
        lines.append(b"Transfer-Encoding: chunked")
    elif one["framing"] != "none":
        lines.append(b"Content-Length: %d" % (len(body) + {"longer": 5, "shorter": -1}.get(one["framing"], 0)))
    framed = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if one["framing"] == "chunked" else body
    data = b"\r\n".join(lines) + b"\r\n\r\n" + framed
    if one["mutation"] is not None:
        at, more = one["mutation"]
        data = data[:at] + more + data[at + len(more) :]
    return data if one["cut"] is None else data[: one["cut"]]


class _World:
    def __init__(self, address: Address, noted: StoredAtOnce) -> None:
        self._address = address
        self._host = b"127.0.0.1:%d" % address.port
        self._noted = noted
        self._numbers = itertools.count()

    def check(self, case: Case) -> None:
        if isinstance(case, bytes):
            answer = self._exchange(case)
            assert answer == b"" or answer.startswith(b"HTTP/1."), answer[:200]
        else:
            self._request(case)
        self._noted.messages.clear()
        good = b"[%d]" % next(self._numbers)
        plain = b"POST /topics/fleet/a/m HTTP/1.1\r\nHost: %s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
        answer = self._exchange(plain % (self._host, len(good), good))
        assert answer.startswith(b"HTTP/1.1 200 "), answer[:200]
        assert self._taken(good) == 1, "the honest message is missing"

    def _request(self, case: Any) -> None:
        body = b"<%d>" % next(self._numbers)
        answer = self._exchange(encoded(case, body, self._host))
        first = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
        assert first or answer == b"", answer[:200]
        statuses = re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)
        assert not any(status[:1] == b"5" and status not in (b"501", b"503") for status in statuses), answer[:200]
        taken, promised = self._taken(b""), sum(status in (b"200", b"202") for status in statuses)
        assert taken == promised, f"{taken} messages taken, {promised} promised: {answer[:200]!r}"
        if case["mutation"] is None and ("host" in case or "origin" in case):
            assert not taken, "a web page, or a foreign host name, published"

    def _taken(self, body: bytes) -> int:
        found = sum(one.payload.startswith(body) for one in self._noted.messages)
        self._noted.messages.clear()
        return found

    def _exchange(self, data: bytes) -> bytes:
        """Send bytes, end our side, and return everything that is answered."""
        answer = b""
        with socket.create_connection(self._address, timeout=30) as raw, suppress(ConnectionError):
            raw.sendall(data)
            raw.shutdown(socket.SHUT_WR)
            while chunk := raw.recv(65536):
                answer += chunk
        return answer


@contextmanager
def _opened() -> Iterator[Check]:
    # Commands are served, and their MQTT broker is away.
    settings = Settings(
        mqtt={"port": 1}, push={"presence": {"rules": [{"filter": "devices/+device/status"}]}},
        http={"port": 0, "limits": {"body_size": f"{LIMIT}B", "read_timeout": "5s"}, "commands": {"topics": ["devices/{device}/commands"]}},
    )  # fmt: skip
    noted, listening = StoredAtOnce(), Listening()
    listening.start()
    service: Any = SimpleNamespace(
        settings=settings, loop=listening.loop, health=Health(), stopping=threading.Event(), intake=lambda **_: noted,
        drain_deadline=time.monotonic() + 5, changed=lambda: None, failed=lambda error: None,
    )  # fmt: skip
    running = Running([HttpHandler()], listening)
    try:
        running.go(service, Phase.START)
        yield _World(running.listeners["http"][0], noted).check
    finally:
        running.stop()
        listening.end()


HTTP: Final = Target(
    "http",
    "Whatever comes on a connection, the answer is HTTP and no fault of the server, a message is taken exactly when it is "
    "answered with 200, none comes from a foreign host name or a web page, and the next device is served.",
    lambda: requests() | st.binary(max_size=200),
    _opened,
    examples=150,
)
