"""Serves ``/metrics`` for Prometheus, ``/healthz`` and ``/readyz`` for an orchestrator over HTTP.

The tiers define their metrics; ``bridge.health`` decides the health. Names of metrics begin with ``pulsebridge_``.
They have base units, counters instead of rates, and no device or topic as label.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import ThreadingHTTPServer
from importlib.metadata import version
from io import BufferedIOBase
from typing import TYPE_CHECKING, Any, Final

import structlog
from prometheus_client import REGISTRY, CollectorRegistry, MetricsHandler, disable_created_metrics
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from bridge.errors import TerminalError
from bridge.health import Health
from bridge.unreadable import left_out

if TYPE_CHECKING:
    from bridge.settings.metrics import MetricsSettings

__all__ = ["HealthCollector", "serving"]

log = structlog.get_logger("metrics")

_REQUEST_S: Final = 10.0
"""How long a client may be silent, in seconds; it occupies a thread."""
_MAX_CONNECTIONS: Final = 32
_MAX_HEAD_BYTES: Final = 16 * 1024
_NO_ROOM_S: Final = 0.5


class HealthCollector(Collector):
    """Exports the verdicts as metrics, so that an alert needs no other probe."""

    def __init__(self, health: Health) -> None:
        self._health = health

    def collect(self) -> Iterator[Metric]:
        """Yield both verdicts and the version."""
        verdict = self._health.verdict(time.monotonic())
        yield InfoMetricFamily(
            "pulsebridge_build", "Version of Pulsebridge.", value={"version": version("pulsebridge")}
        )
        yield CounterMetricFamily(
            "pulsebridge_unreadable_records",
            "Records of Pulsebridge's own topics that could not be read and were left out.",
            value=left_out(),
        )
        yield GaugeMetricFamily(
            "pulsebridge_healthy",
            "1 while the process works or can recover by itself, as /healthz reports.",
            value=float(verdict.healthy),
        )
        yield GaugeMetricFamily(
            "pulsebridge_ready",
            "1 while the process serves, as /readyz reports.",
            value=float(verdict.ready),
        )


class _Server(ThreadingHTTPServer):
    """A server with a thread for each connection. Beyond ``_MAX_CONNECTIONS`` a new one closes the oldest."""

    request_queue_size = 128

    def __init__(self, settings: MetricsSettings, health: Health, registry: CollectorRegistry) -> None:
        self.health = health
        self.address_family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        self._open: dict[Any, None] = {}  # oldest first
        self._lock = threading.Lock()
        super().__init__((settings.host, settings.port), _Handler.factory(registry))

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection. Without a free descriptor it waits a little; the connection stays in the queue."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(_NO_ROOM_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start the thread of a connection."""
        with self._lock:
            self._open[request] = None
            if len(self._open) > _MAX_CONNECTIONS:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread wakes and closes it
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection. Its thread calls this."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the error of a connection at DEBUG, because clients disconnect at any time."""
        log.debug("a request for metrics or health failed", why=repr(sys.exc_info()[1]))


class _Head:
    """Reads lines of a request up to ``_MAX_HEAD_BYTES``; then it reports the end of the input."""

    def __init__(self, file: BufferedIOBase) -> None:
        self._file = file
        self._left = _MAX_HEAD_BYTES

    def readline(self, limit: int) -> bytes:
        line = self._file.readline(min(limit, self._left))
        self._left -= len(line)
        return line

    def close(self) -> None:
        self._file.close()


class _Handler(MetricsHandler):
    """Answers one request on three paths; all others are 404."""

    server: _Server
    timeout = _REQUEST_S

    def setup(self) -> None:
        """Bound the memory that a client can use."""
        super().setup()
        self.rfile = _Head(self.rfile)  # type: ignore[assignment]

    def do_GET(self) -> None:
        """Answer with the metrics or a verdict."""
        path = self.path.partition("?")[0]
        if path == "/metrics":
            if self.command == "HEAD":  # MetricsHandler would send the metrics with it
                self._answer(405, {"allowed": ["GET"]})
            else:
                super().do_GET()
            return
        verdict = self.server.health.verdict(time.monotonic())
        if path == "/healthz":
            self._answer(200 if verdict.healthy else 503, {"healthy": verdict.healthy, "failed": _listed(verdict.sick)})
        elif path == "/readyz":
            self._answer(200 if verdict.ready else 503, {"ready": verdict.ready, "missing": _listed(verdict.missing)})
        else:
            self._answer(404, {"paths": ["/metrics", "/healthz", "/readyz"]})

    do_HEAD = do_GET

    def _refuse(self) -> None:
        self._answer(405, {"allowed": ["GET", "HEAD"]})

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse

    def _answer(self, status: int, body: Mapping[str, object]) -> None:
        data = json.dumps(body).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _listed(parts: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"part": name, "why": why} for name, why in parts.items()]


@contextmanager
def serving(
    settings: MetricsSettings,
    health: Health,
    registry: CollectorRegistry = REGISTRY,
    more: Iterable[Collector] = (),
) -> Iterator[None]:
    """Serve the endpoint while the block runs, unless the port is 0. ``more`` are further collectors.

    Raises TerminalError if the port is not available.
    """
    if settings.port == 0:
        yield
        return
    disable_created_metrics()  # type: ignore[no-untyped-call]
    collectors = (HealthCollector(health), *more)
    try:
        server = _Server(settings, health, registry)
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
