"""The endpoint: there while the block runs, gone after it, clear about a taken port, and true about health."""

from __future__ import annotations

import socket
import threading
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress

import pytest
from prometheus_client import CollectorRegistry

from bridge.errors import TerminalError
from bridge.health import Health
from bridge.metrics import serving
from bridge.settings.metrics import MetricsSettings
from pulsebridge.local.ports import free_ports, is_free
from tests.support.endpoint import Endpoint
from tests.support.waiting import poll_for


def test_metrics_are_served_on_loopback_while_the_block_runs() -> None:
    (port,) = free_ports(1)
    with serving(MetricsSettings(port=port), Health()):
        status, text = Endpoint(port).get("/metrics")
        assert status == 200
        assert "# HELP" in text
        with pytest.raises(TerminalError, match=r"metrics\.port"), serving(MetricsSettings(port=port), Health()):
            pass
    assert is_free(port)


def test_port_0_serves_nothing() -> None:
    with serving(MetricsSettings(), Health()):
        pass


def test_ipv6_loopback_is_served_as_well() -> None:
    (port,) = free_ports(1)
    try:
        with (
            serving(MetricsSettings(host="::1", port=port), Health()),
            urllib.request.urlopen(f"http://[::1]:{port}/metrics", timeout=10) as answer,
        ):
            assert answer.status == 200
    except TerminalError:
        pytest.skip("no IPv6 on this machine")


def test_health_and_readiness_name_what_is_wrong() -> None:
    (port,) = free_ports(1)
    health = Health()
    registry = CollectorRegistry()
    with serving(MetricsSettings(port=port), health, registry):
        endpoint = Endpoint(port)
        link = health.part("link main", loop=True)
        assert endpoint.asked("/healthz") == (200, {"healthy": True, "failed": []})
        assert endpoint.asked("/readyz") == (
            503,
            {"ready": False, "missing": [{"part": "link main", "why": "starting"}]},
        )
        link.ready()
        assert endpoint.asked("/readyz") == (200, {"ready": True, "missing": []})
        assert verdicts(endpoint) == [1.0, 1.0]
        link.failed("the client id is taken")
        expected = [{"part": "link main", "why": "the client id is taken"}]
        assert endpoint.asked("/healthz") == (503, {"healthy": False, "failed": expected})
        assert endpoint.asked("/readyz") == (503, {"ready": False, "missing": expected})
        assert verdicts(endpoint) == [0.0, 0.0]


def verdicts(endpoint: Endpoint) -> list[float]:
    return [endpoint.value("pulsebridge_healthy"), endpoint.value("pulsebridge_ready")]


def test_other_paths_and_methods_are_refused() -> None:
    (port,) = free_ports(1)
    with serving(MetricsSettings(port=port), Health()):
        endpoint = Endpoint(port)
        assert endpoint.asked("/")[0] == 404
        assert endpoint.asked("/metrics/x")[0] == 404
        request = urllib.request.Request(f"http://127.0.0.1:{port}/healthz", data=b"x")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=10)
        refused.value.close()
        assert refused.value.code == 405


@pytest.mark.parametrize(("path", "status"), [("/metrics", b"405"), ("/healthz", b"200"), ("/x", b"404")])
def test_an_answer_to_head_has_no_body(path: str, status: bytes) -> None:
    """RFC 9110, 9.3.2."""
    (port,) = free_ports(1)
    with (
        serving(MetricsSettings(port=port), Health()),
        socket.create_connection(("127.0.0.1", port), timeout=30) as raw,
    ):
        raw.sendall(f"HEAD {path} HTTP/1.0\r\n\r\n".encode())
        answer = b"".join(iter(lambda: raw.recv(65_536), b""))
    head, body = answer.split(b"\r\n\r\n", 1)
    assert (head.split(b" ")[1], body) == (status, b"")


def test_h39_clients_that_send_slowly_use_few_threads_and_block_no_probe() -> None:
    (port,) = free_ports(1)
    with serving(MetricsSettings(port=port), Health()), ExitStack() as opened:
        before = threading.active_count()
        dripping = [opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30)) for _ in range(100)]

        def few_threads() -> bool:
            for raw in dripping:
                with suppress(OSError):  # it may be cut already
                    raw.send(b"G")
            return threading.active_count() - before <= 40

        poll_for(few_threads, 15, "the end of the oldest connections")
        assert Endpoint(port).asked("/healthz")[0] == 200


def test_h39_a_long_head_is_not_read_to_its_end() -> None:
    (port,) = free_ports(1)
    with (
        serving(MetricsSettings(port=port), Health()),
        socket.create_connection(("127.0.0.1", port), timeout=30) as raw,
        suppress(ConnectionError),  # it closes over what it has not read
    ):
        raw.sendall(b"GET /healthz HTTP/1.1\r\n" + 20 * (b"X: " + b"x" * 60_000 + b"\r\n"))
        assert raw.recv(100).startswith(b"HTTP/1.")
