"""A watch does not delay the end of its process."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from bridge.errors import UnreachableError
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.watch import watching
from bridge.settings.pulsar import PulsarSettings
from tests.support.waiting import patient


def test_the_end_waits_a_moment_for_a_server_that_hangs() -> None:
    asked = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        url = f"http://127.0.0.1:{hanging.getsockname()[1]}"
        with PulsarAdmin(PulsarSettings(admin_url=url), timeout_s=patient(300)) as admin:

            def ask() -> None:
                asked.set()
                admin.request("GET", "/a")

            with watching("a-watch", 60, ask, over=lambda: False):
                assert asked.wait(patient(10))
                began = time.monotonic()
            assert time.monotonic() - began < patient(30)
        with pytest.raises(UnreachableError, match="are closed"):
            admin.request("GET", "/a")
