"""Waits for Pulsar at the start of a job, and provisions the topic of alerts."""

from __future__ import annotations

import threading
import time
from typing import Final

import structlog

from bridge.contract import ALERTS_TOPIC
from bridge.errors import TerminalError, TransientError
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.provisioning import create_topic, partitions_ready
from bridge.pulsar.provisioning_plan import topic_need
from bridge.settings.pulsar import PulsarSettings

__all__ = ["await_pulsar", "provision_alerts"]

log = structlog.get_logger("provisioning")

_WARN_S: Final = 20.0


def provision_alerts(settings: PulsarSettings, subscription: str) -> None:
    """Retain all alerts for their table. Its flow may start long after the writers of alerts.

    Raises TransientError if Pulsar's admin cannot be reached, DeniedError if it does not allow that, TerminalError if
    ``verify`` finds it missing.
    """
    if settings.provision == "off":
        return
    need = topic_need(settings, ALERTS_TOPIC, subscription)
    with PulsarAdmin(settings) as admin:
        if partitions_ready(admin, need):
            return
        if settings.provision == "verify":
            raise TerminalError(
                f"{need.topic} does not exist, or has no subscription {subscription!r} that retains alerts for their table",
                remedy="let an operator run what `pulsebridge provision --dry-run` prints, with streaming.alerts set",
            )
        admin.provision_namespaces()
        create_topic(admin, need)


def await_pulsar(settings: PulsarSettings, stop: threading.Event) -> None:
    """Wait until Pulsar's admin answers, because it may start after the caller.

    Returns early if a stop was requested. Raises RefusedError if the admin refuses access.
    """
    began, warned = time.monotonic(), False
    with PulsarAdmin(settings) as admin:
        while not stop.is_set():
            try:
                admin.cluster()
                return
            except TransientError as e:
                if not warned and time.monotonic() - began > _WARN_S:
                    warned = True
                    log.warning("Pulsar does not answer yet. Action: start it", why=e.what)
            stop.wait(0.25)
