"""Tiers on the secured servers: namespaces provisioned for roles, what is stored as the administrator reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge.provisioning import carry_out
from bridge.provisioning_commands import whole_plan
from bridge.pulsar_admin import PulsarAdmin
from bridge.pulsar_client import EARLIEST, PulsarClient
from bridge.settings import Settings
from bridge.settings.ingest import IngestSettings
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.rules import TopicRule
from tests.support.secured import SecuredPulsar

__all__ = ["PLANT", "granted", "payloads", "provisioned_for"]

PLANT = TopicRule(
    name="plant",
    filter="plant/+device/+metric",
    topic="plant",
    device="{device}",
    command_topic="commands/{device}",
)


def provisioned_for(pulsar: SecuredPulsar, roles: Mapping[str, str], **changes: Any) -> PulsarSettings:
    """Return the administrator's settings of fresh namespaces with all of the plan done. ``roles``: tier → role."""
    settings = Settings(
        pulsar=pulsar.namespaces("admin", partitions=1, command_partitions=1, **changes),
        ingest=IngestSettings(rules=(PLANT,)),
    )
    with PulsarAdmin(settings.pulsar, timeout_s=30) as admin:
        carry_out(admin, whole_plan(settings, roles=dict(roles)))
    return settings.pulsar


def granted(settings: PulsarSettings, namespace: str, role: str, *actions: str) -> None:
    """Grant a role exactly these actions on one of the two namespaces; none takes all away."""
    path = f"/namespaces/{settings.tenant}/{namespace}/permissions/{role}"
    with PulsarAdmin(settings, timeout_s=30) as admin:
        admin.request("POST" if actions else "DELETE", path, body=list(actions) or None)


def payloads(settings: PulsarSettings, topic: str) -> list[bytes]:
    """Read a topic from its beginning to its present end, as the role of ``settings``."""
    found = []
    with PulsarClient(settings) as client:
        for partition in client.partitions(topic):
            reader: Any = client.reader(partition, EARLIEST)
            while reader.has_message_available():
                found.append(reader.read_next(10_000).data())
            reader.close()
    return found
