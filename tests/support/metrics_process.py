"""A process that serves every metric of the project on a loopback port, as ingest, push and the jobs serve theirs.

``python -m tests.support.metrics_process PORT`` serves until a signal ends it.
"""

from __future__ import annotations

import signal
import sys

from prometheus_client import CollectorRegistry, ProcessCollector

from bridge.health import Health
from bridge.metrics import serving
from bridge.settings.metrics import MetricsSettings
from pulsebridge.cli.metrics_catalogue import populate

if __name__ == "__main__":
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    populate(registry)
    health = Health()
    health.part("all").ready()
    with serving(MetricsSettings(port=int(sys.argv[1])), health, registry):
        signal.pause()
