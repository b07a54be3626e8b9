"""Connection check: dials every endpoint once, with a separate client id, and consumes nothing.

It decides which result is an answer and which remedy belongs to a failure; the clients dial.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bridge.errors import DeniedError, PulsebridgeError, RefusedError, TransientError
from bridge.mqtt.device import probe
from bridge.mqtt.types import Connected
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import PulsarClient
from bridge.pulsar.dial import dial
from bridge.settings import MqttSettings, Settings

__all__ = ["DIAL_TIMEOUT_S", "Finding", "check_endpoints", "dial_one"]

DIAL_TIMEOUT_S = 5.0
"""Time for one endpoint to answer, in seconds."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    name: str
    address: str
    ok: bool
    detail: str
    remedy: str = ""
    took_ms: int = 0


def check_endpoints(settings: Settings) -> list[Finding]:
    """Dial each MQTT link, Pulsar and Pulsar's admin; return a finding for each. Failures are findings, not errors."""
    pulsar = settings.pulsar
    links = {
        "MQTT broker" if not settings.ingest.links else f"MQTT link {name}": mqtt
        for name, mqtt in settings.links().items()
    }
    return [
        *(
            dial_one(name, f"{mqtt.host}:{mqtt.port}", "mqtt.host, mqtt.port", partial(_mqtt, mqtt))
            for name, mqtt in links.items()
        ),
        dial_one("Pulsar", pulsar.service_url, "pulsar.service_url", lambda: _pulsar(settings)),
        *(
            [dial_one("Pulsar admin", pulsar.admin_url, "pulsar.admin_url", lambda: _admin(settings))]
            if pulsar.provision != "off"  # then no tier uses it
            else []
        ),
    ]


def dial_one(name: str, address: str, setting: str, dial: Callable[[], str]) -> Finding:
    """Return the result of ``dial``, or its error, as a finding; ``setting`` names the settings of the endpoint."""
    start = time.monotonic()
    try:
        detail = dial()
    except PulsebridgeError as e:
        if e.remedy:
            remedy = e.remedy
        elif isinstance(e, RefusedError):
            remedy = "the endpoint answers, but refuses: check the user, password, token or certificate in the settings"
        else:
            remedy = f"start the server (pulsebridge up starts local ones), or set {setting}"
        return Finding(name, address, False, e.what, remedy, round((time.monotonic() - start) * 1000))
    return Finding(name, address, True, detail, "", round((time.monotonic() - start) * 1000))


def _mqtt(settings: MqttSettings) -> str:
    found = probe(settings)
    if isinstance(found, Connected):
        return f"supports MQTT {settings.protocol}, receive maximum {found.receive_maximum}"
    if found.remedy is not None:
        raise DeniedError(found.why, remedy=found.remedy)
    raise TransientError(found.why)


def _pulsar(settings: Settings) -> str:
    dial(settings.pulsar, DIAL_TIMEOUT_S)  # reports at once a failure that the client reports only after its timeout
    pulsar = settings.pulsar.model_copy(update={"operation_timeout": DIAL_TIMEOUT_S})
    with PulsarClient(pulsar) as client:
        # A look-up creates no topic and reads no message, but passes authentication.
        client.partitions(pulsar.readings_topic("pulsebridge-check"))
    return "answers look-ups"


def _admin(settings: Settings) -> str:
    with PulsarAdmin(settings.pulsar, timeout_s=DIAL_TIMEOUT_S) as admin:
        return f"cluster {admin.cluster()}"
