"""What one tier may do with its credentials, tried without writing, reading or acknowledging anything.

A subscription is tried in a session of its own that ends at once; a producer or reader is opened and closed again.
Whether a publish is allowed at the MQTT broker cannot be known without publishing, so it is not tried.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from bridge.check.endpoints import Finding, dial_one
from bridge.contract import CURSORS_TOPIC, DEAD_LETTERS_TOPIC, RECEIPTS_TOPIC
from bridge.errors import DeniedError, RefusedError
from bridge.settings import Settings

if TYPE_CHECKING:
    from bridge.provisioning_plan import Needs

__all__ = ["TIERS", "check_rights"]

TIERS: Final = ("ingest", "push")


def check_rights(settings: Settings, tier: str) -> list[Finding]:
    """Return a finding for each side that the tier uses; failures are findings, not errors."""
    pulsar = settings.pulsar
    found = [_tried("Pulsar rights", pulsar.service_url, lambda: _pulsar(settings, tier))]
    if tier == "ingest":
        for name, mqtt in settings.links().items():
            address = f"{mqtt.host}:{mqtt.port}"
            label = "MQTT rights" if name == "mqtt" else f"MQTT {name} rights"
            one = settings.model_copy(update={"mqtt": mqtt})
            found.append(_tried(label, address, lambda one=one: _filters(one)))  # type: ignore[misc]
    return found


def _tried(name: str, address: str, act: Callable[[], str]) -> Finding:
    return dial_one(name, address, "the settings named above", act)


def _pulsar(settings: Settings, tier: str) -> str:
    from bridge.ingest.provisioning import static_topics
    from bridge.provisioning import try_reading, try_writing
    from bridge.provisioning_plan import ingest_needs, push_needs

    pulsar = settings.pulsar
    topics = static_topics(settings) if tier == "ingest" else []
    needs = ingest_needs(pulsar, topics) if tier == "ingest" else push_needs(pulsar)
    said = "not looked at: pulsar.provision is off" if pulsar.provision == "off" else _needs(settings, needs)
    if tier == "ingest":
        try_writing(pulsar, (pulsar.system_topic(DEAD_LETTERS_TOPIC), *topics))
    else:
        try_writing(pulsar, (pulsar.system_topic(RECEIPTS_TOPIC),))
        try_reading(pulsar, (pulsar.system_topic(CURSORS_TOPIC),))
    return said


def _needs(settings: Settings, needs: Needs) -> str:
    from bridge.provisioning import look, verify
    from bridge.pulsar_admin import PulsarAdmin

    with PulsarAdmin(settings.pulsar) as admin:
        if settings.pulsar.provision == "verify":
            unchecked = verify(admin, needs)
            return "all is there" + (f"; not looked at: {', '.join(unchecked)}" if unchecked else "")
        found = look(admin, needs)
    if found.unchecked:
        raise DeniedError(
            f"pulsar.provision is create, and this role does not administer the tenant {settings.pulsar.tenant}",
            remedy="set pulsar.provision=verify, and let an operator run what `pulsebridge provision --dry-run` prints",
        )
    return (
        f"all is there but {len(found.missing)} things that {needs.tier} will make"
        if found.missing
        else "all is there"
    )


def _filters(settings: Settings) -> str:
    from bridge.mapping import subscriptions
    from bridge.mqtt.device import try_subscribing
    from bridge.mqtt.refusals import subscriber

    filters = [f for f in subscriptions(settings.ingest) if not f.startswith("$share/")]
    refused = [
        f for f, code in zip(filters, try_subscribing(settings.mqtt, filters), strict=True) if code >= 0x80
    ]
    if refused:
        raise RefusedError(
            f"the MQTT broker refuses the subscription to {', '.join(repr(f) for f in refused)}",
            remedy=f"allow {subscriber(settings.mqtt, settings.mqtt.client_id)} to read it, or take it out of "
            "ingest.rules and ingest.filters",
        )
    return f"may subscribe to {', '.join(filters)}"
