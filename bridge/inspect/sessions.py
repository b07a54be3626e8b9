"""Unserved MQTT sessions for ``pulsebridge status``: an error with a remedy for each (H7)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from bridge.contract import DEAD_LETTERS_TOPIC
from bridge.errors import PulsebridgeError
from bridge.ingest.sessions import read_advertised, session_property, slots, stored_sessions
from bridge.inspect.instances import Instances
from bridge.pulsar.admin import PulsarAdmin
from bridge.routing.sharding import Remembered, unserved
from bridge.settings import Settings

__all__ = ["Sessions", "look_at_sessions"]

_PATIENCE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Sessions:
    """The sessions by name that queue messages which no process reads, and the remedy for each."""

    unserved: dict[str, Remembered] = field(default_factory=dict)
    remedies: dict[str, str] = field(default_factory=dict)
    problem: str = ""
    """Reason for missing data, empty if the data is complete."""


def look_at_sessions(settings: Settings, instances: Instances) -> Sessions:
    """Read the sessions that ingest recorded, and compare them with the settings and the running processes."""
    pulsar = settings.pulsar
    if instances.problem and not instances.records:
        return Sessions(problem=instances.problem)  # the running processes are not known
    mqtt = "mqtt" in settings.messaging_protocols
    sessions = [slot for _, _, slot in slots(settings, own=False)] if mqtt else []
    served = {(p.broker, p.client_id(p.name)) for p in sessions}
    for record, state in instances.records:
        if state != "gone" and "mqtt" in record.protocols:
            served |= read_advertised(record.protocols["mqtt"].data)
    try:
        with PulsarAdmin(pulsar, timeout_s=_PATIENCE_S) as admin:
            known = stored_sessions(admin)
    except PulsebridgeError as e:
        return Sessions(problem=e.what)
    names = unserved(known, {p.name for p in sessions}, served)
    families = {p.family for p in sessions} | {one for p in sessions for one in p.former}
    topic = pulsar.system_topic(DEAD_LETTERS_TOPIC)
    return Sessions(
        {name: known[name] for name in names},
        {name: _remedy(name, known[name], mine=known[name].family in families, topic=topic) for name in names},
    )


def _remedy(name: str, session: Remembered, *, mine: bool, topic: str) -> str:
    if mine:
        return (
            "start ingest: with its former number of shards a worker reads it, with these settings the first worker "
            "drains and deletes it"
        )
    prefix = name.removesuffix(session.client_id) if session.client_id else ""
    client_id = session.family.removeprefix(prefix)
    return (
        f"start the deployment that it belongs to; or list {client_id!r} in mqtt.former_client_ids (of that broker) "
        "and start ingest, which drains and deletes it; or, if its broker no longer exists: pulsar-admin topics "
        f"remove-properties --key {session_property(name)} {topic}"
    )
