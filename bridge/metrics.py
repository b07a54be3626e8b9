"""Shows a process's Prometheus metrics over HTTP. The counters themselves stand in the tiers that count.

Names begin with ``pulsebridge_``, in base units, counters instead of rates, with no device and no topic as label.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import start_http_server

from bridge.errors import TerminalError
from bridge.settings.metrics import MetricsSettings

__all__ = ["serving"]


@contextmanager
def serving(settings: MetricsSettings) -> Iterator[None]:
    """Serve the metrics while the block runs; port 0 serves none. Raises TerminalError when the port is taken."""
    if settings.port == 0:
        yield
        return
    try:
        server, thread = start_http_server(settings.port, settings.host)
    except OSError as e:
        raise TerminalError(
            f"metrics cannot be served on {settings.host}:{settings.port}: {e.strerror}",
            remedy="choose another metrics.port, or 0 for none",
        ) from e
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
