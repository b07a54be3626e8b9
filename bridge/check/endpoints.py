"""Dials every endpoint once, with a client id of its own, and consumes nothing.

It decides what counts as an answer and which remedy goes with a failure; the dialling itself is the clients'.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

from bridge.errors import DeniedError, PulsebridgeError, RefusedError, TransientError
from bridge.settings import MqttSettings, Settings

__all__ = ["DIAL_TIMEOUT_S", "Finding", "check_endpoints", "dial_one"]

DIAL_TIMEOUT_S = 5.0
"""How long one endpoint may take to answer, in seconds."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found at one endpoint."""

    name: str
    address: str
    ok: bool
    detail: str
    remedy: str = ""
    took_ms: int = 0

    def as_dict(self) -> dict[str, object]:
        """Return the finding for ``--json``."""
        return asdict(self)


def check_endpoints(settings: Settings) -> list[Finding]:
    """Dial each MQTT link, Pulsar and Pulsar's admin, and return a finding for each; failures are findings, not errors."""
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
            if pulsar.provision != "off"  # then nothing of ours asks it
            else []
        ),
    ]


def dial_one(name: str, address: str, setting: str, dial: Callable[[], str]) -> Finding:
    """Return what ``dial`` found, or the finding that its error stands for; ``setting`` names where to look."""
    start = time.monotonic()
    try:
        detail = dial()
    except PulsebridgeError as e:
        if e.remedy:
            remedy = e.remedy
        elif isinstance(e, RefusedError):
            remedy = "it answers, but refuses: check the user, password, token or certificate in the settings"
        else:
            remedy = f"start it (pulsebridge up starts local ones), or set {setting}"
        return Finding(name, address, False, e.what, remedy, round((time.monotonic() - start) * 1000))
    return Finding(name, address, True, detail, "", round((time.monotonic() - start) * 1000))


def _mqtt(settings: MqttSettings) -> str:
    from bridge.mqtt.device import probe

    found = probe(settings)
    if not found.ok:
        if found.remedy is not None:
            raise DeniedError(found.why, remedy=found.remedy)
        raise TransientError(found.why)
    return f"speaks MQTT {found.protocol}, takes {found.receive_maximum} publishes unconfirmed"


def _pulsar(settings: Settings) -> str:
    from bridge.pulsar_client import PulsarClient
    from bridge.pulsar_dial import dial

    dial(settings.pulsar, DIAL_TIMEOUT_S)  # says at once what the client would give up on after its timeout
    pulsar = settings.pulsar.model_copy(update={"operation_timeout_s": DIAL_TIMEOUT_S})
    with PulsarClient(pulsar) as client:
        # A look-up makes no topic and reads no message, but goes through authentication.
        client.partitions(pulsar.readings_topic("pulsebridge-check"))
    return "answers look-ups"


def _admin(settings: Settings) -> str:
    from bridge.pulsar_admin import PulsarAdmin

    with PulsarAdmin(settings.pulsar, timeout_s=DIAL_TIMEOUT_S) as admin:
        return f"cluster {admin.cluster()}"
