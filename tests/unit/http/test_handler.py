"""The handler's two ports, plain and with TLS, open at the same time in one process."""

from __future__ import annotations

import http.client
import ssl
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme

from bridge.health import Health
from bridge.http.handler import HttpHandler
from bridge.protocols.listening import Listening
from bridge.protocols.running import Phase, Running
from bridge.settings import Settings
from tests.support.http_intake import StoredAtOnce


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_both_ports_are_open_and_each_speaks_its_own(tmp_path: Path, host: str) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    files = {"tls_certificate": tmp_path / "cert.pem", "tls_private_key": tmp_path / "key.pem"}
    settings = Settings(http={"host": host, "port": 0, "tls_port": 0, **files})
    stored, listening = StoredAtOnce(), Listening()
    listening.start()
    service: Any = SimpleNamespace(
        settings=settings, loop=listening.loop, health=Health(), stopping=threading.Event(), intake=lambda **_: stored,
        drain_deadline=time.monotonic() + 5, changed=lambda: None, failed=lambda error: None,
    )  # fmt: skip
    running = Running([HttpHandler()], listening)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    try:
        running.go(service, Phase.START)
        found = [address for address in running.listeners["http"] if ":" not in address.host]
        plain, secure = found  # in this order
        assert plain.port != secure.port
        for connection, topic in (
            (http.client.HTTPConnection(plain.host, plain.port, timeout=30), "plain"),
            (http.client.HTTPSConnection("localhost", secure.port, timeout=30, context=trusting), "secure"),
        ):
            connection.request("POST", f"/topics/{topic}", b"x", {"Host": "localhost"})
            assert connection.getresponse().status == 200
            connection.close()
        assert [message.topic for message in stored.messages] == ["plain", "secure"]
        with pytest.raises(ssl.SSLError):
            http.client.HTTPSConnection("localhost", plain.port, timeout=30, context=trusting).request("GET", "/")
    finally:
        running.stop()
        listening.end()
