"""Memory of an ingest worker while Pulsar is away and devices publish on: it must not grow, however long that lasts.

What is measured is the slope of the resident memory after a warm-up, in bytes per second, for MQTT 5 (where Receive
Maximum holds the broker back) and for 3.1.1 (where the worker stops reading). Beside it stands what would grow if
each message that devices publish meanwhile were kept: rate times payload.
"""

from __future__ import annotations

import os
from contextlib import ExitStack

from bridge.settings import LocalSettings
from bridge.settings.ingest import TopicRule
from pulsebridge.local.stack import LocalStack
from tests.bench.processes import bench_folder
from tests.bench.results import Figure
from tests.support.fleet import Fleet
from tests.support.ingest import ingest_process, ingest_settings, stored
from tests.support.memory import memory_samples, slope
from tests.support.stack import mqtt_settings, provisioned
from tests.support.waiting import poll_for

__all__ = ["measure"]

SECONDS = "BENCH_OUTAGE_S"
"""Environment variable: length of the outage in seconds, 600 by default."""
RATE = 1000.0
SIZE = 128
WARM_SHARE = 0.2


def measure() -> tuple[list[Figure], list[str]]:
    """Return ``ingest.outage_memory_slope`` for both versions of MQTT, and what was left out."""
    seconds = float(os.environ.get(SECONDS, "600"))
    slopes: dict[str, float] = {}
    with (
        bench_folder() as folder,
        LocalStack(LocalSettings(quick_start=False, start_timeout="5m")) as stack,
        ExitStack() as run,
    ):
        pids = []
        for protocol in ("5", "3.1.1"):
            pulsar = provisioned(stack)
            mqtt = mqtt_settings(stack, protocol=protocol)
            rule = TopicRule(name="fleet", filter=f"{mqtt.client_id}/+device/x", topic="fleet", device="{device}")
            place = folder / protocol
            place.mkdir()
            settings = ingest_settings(mqtt, pulsar, routes=(rule,))
            pids.append(run.enter_context(ingest_process(settings, place)).pid)
            run.enter_context(
                Fleet(stack.mqtt_host, stack.mqtt_port, mqtt.client_id, devices=100, rate=RATE, size=SIZE)
            )
            poll_for(lambda pulsar=pulsar: len(stored(pulsar, "fleet")) > 5000, 90, "a flow", every=1.0)  # type: ignore[misc]
        stack.kill("pulsar")
        found = memory_samples(pids, seconds, say=lambda line: print(line, flush=True))
        for protocol, samples in zip(("5", "3.1.1"), found, strict=True):
            slopes[protocol] = slope(samples, after_s=WARM_SHARE * seconds)
    beside = ("if each publish were kept", RATE * SIZE)
    return [
        Figure("ingest.outage_memory_slope", slopes["5"], "bytes/s", *beside),
        Figure("ingest.outage_memory_slope_mqtt311", slopes["3.1.1"], "bytes/s", *beside),
    ], []
