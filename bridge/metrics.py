"""Shows a process over HTTP: ``/metrics`` for Prometheus, ``/healthz`` and ``/readyz`` for who starts it and routes to it.

What is counted stands in the tiers that count; what health means is decided in ``bridge.health``. Names begin with
``pulsebridge_``, in base units, counters instead of rates, with no device and no topic as label.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from socketserver import ThreadingMixIn
from typing import Any, Final, TypeAlias
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import REGISTRY, CollectorRegistry, disable_created_metrics, make_wsgi_app
from prometheus_client.metrics_core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from bridge.errors import TerminalError
from bridge.health import Health
from bridge.settings.metrics import MetricsSettings

__all__ = ["Endpoint", "HealthCollector", "serving"]

_StartResponse: TypeAlias = Callable[..., Any]
_App: TypeAlias = Callable[[dict[str, Any], _StartResponse], Iterable[bytes]]

_REQUEST_S: Final = 10.0
"""How long one request may take to arrive, so that a silent peer does not keep a thread for ever."""


class HealthCollector(Collector):
    """Shows the verdicts as metrics, so that an alert needs no second probe."""

    def __init__(self, health: Health) -> None:
        self._health = health

    def collect(self) -> Iterator[Metric]:
        """Yield both verdicts and the version."""
        verdict = self._health.verdict(time.monotonic())
        yield InfoMetricFamily(
            "pulsebridge_build", "Version of Pulsebridge.", value={"version": version("pulsebridge")}
        )
        yield GaugeMetricFamily(
            "pulsebridge_healthy",
            "1 while the process works or can come back by itself, as /healthz says.",
            value=float(verdict.healthy),
        )
        yield GaugeMetricFamily(
            "pulsebridge_ready",
            "1 while the process serves, as /readyz says.",
            value=float(verdict.ready),
        )


class Endpoint:
    """The WSGI application: three paths, everything else is 404."""

    def __init__(self, health: Health, registry: CollectorRegistry = REGISTRY) -> None:
        self._health = health
        self._metrics: _App = make_wsgi_app(registry)

    def __call__(self, environ: dict[str, Any], start_response: _StartResponse) -> Iterable[bytes]:
        """Answer one request. Triggered on a thread of its own for each."""
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            return self._metrics(environ, start_response)
        if environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            return _answer(start_response, "405 Method Not Allowed", {"allowed": ["GET", "HEAD"]})
        verdict = self._health.verdict(time.monotonic())
        if path == "/healthz":
            body = {"healthy": verdict.healthy, "failed": _listed(verdict.sick)}
            return _answer(start_response, _status(verdict.healthy), body)
        if path == "/readyz":
            body = {"ready": verdict.ready, "missing": _listed(verdict.missing)}
            return _answer(start_response, _status(verdict.ready), body)
        return _answer(start_response, "404 Not Found", {"paths": ["/metrics", "/healthz", "/readyz"]})


def _listed(parts: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"part": name, "why": why} for name, why in parts.items()]


def _status(good: bool) -> str:
    return "200 OK" if good else "503 Service Unavailable"


def _answer(start_response: _StartResponse, status: str, body: Mapping[str, object]) -> list[bytes]:
    data = json.dumps(body).encode() + b"\n"
    start_response(
        status,
        [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(data))),
            ("Cache-Control", "no-store"),
        ],
    )
    return [data]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Quiet(WSGIRequestHandler):
    timeout = _REQUEST_S

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a probe every few seconds is no news."""


@contextmanager
def serving(
    settings: MetricsSettings,
    health: Health | None = None,
    registry: CollectorRegistry = REGISTRY,
    more: Iterable[Collector] = (),
) -> Iterator[None]:
    """Serve the endpoint while the block runs; port 0 serves none. ``more`` is shown beside what was counted.

    Raises TerminalError when the port is taken.
    """
    if settings.port == 0:
        yield
        return
    health = health or Health(settings.stuck_s)
    disable_created_metrics()  # type: ignore[no-untyped-call]
    collectors = (HealthCollector(health), *more)
    kind = _Server6 if ":" in settings.host else _Server
    try:
        server = make_server(settings.host, settings.port, Endpoint(health, registry), kind, _Quiet)
    except OSError as e:
        raise TerminalError(
            f"metrics cannot be served on {settings.host}:{settings.port}: {e.strerror}",
            remedy="choose another metrics.port, or 0 for none",
        ) from e
    for collector in collectors:
        registry.register(collector)
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        for collector in collectors:
            registry.unregister(collector)
