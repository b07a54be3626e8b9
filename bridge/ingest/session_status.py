"""What ``pulsebridge status`` says of MQTT sessions that nobody reads: an error, with what to do about each (H7)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Console

from bridge.contract import DEAD_LETTERS_TOPIC
from bridge.display import markup
from bridge.errors import PulsebridgeError
from bridge.ingest.places import all_places, read_advertised
from bridge.ingest.session_memory import SessionMemory
from bridge.protocols.status import Instances
from bridge.pulsar_admin import PulsarAdmin
from bridge.settings import Settings
from bridge.sharding import Remembered, unserved

__all__ = ["Sessions", "look_at_sessions", "show_sessions"]

_PATIENCE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Sessions:
    """The sessions that queue messages which nobody reads, by name, and what to do about each."""

    unserved: dict[str, Remembered] = field(default_factory=dict)
    remedies: dict[str, str] = field(default_factory=dict)
    problem: str = ""
    """Why they are not known."""

    def as_dict(self) -> dict[str, Any]:
        """Return it for ``--json``."""
        return {
            "unserved_sessions": [
                {
                    "client_id": s.client_id or name,
                    "broker": s.broker,
                    "filters": list(s.granted),
                    "remedy": self.remedies[name],
                }
                for name, s in self.unserved.items()
            ],
            "sessions_problem": self.problem,
        }


def look_at_sessions(settings: Settings, instances: Instances) -> Sessions:
    """Read which sessions ingest has left, and compare them with the settings and with the processes that live."""
    pulsar = settings.pulsar
    if instances.problem and not instances.records:
        return Sessions(problem=instances.problem)  # who lives is not known
    places = all_places(settings) if "mqtt" in settings.messaging_protocols else []
    served = {(p.broker, p.client_id(p.name)) for p in places}
    for record, state in instances.records:
        if state != "gone" and "mqtt" in record.protocols:
            served |= read_advertised(record.protocols["mqtt"].data)
    try:
        with PulsarAdmin(pulsar, timeout_s=_PATIENCE_S) as admin:
            known = SessionMemory(pulsar).load(admin)
    except PulsebridgeError as e:
        return Sessions(problem=e.what)
    names = unserved(known, {p.name for p in places}, served)
    families = {p.family for p in places} | {one for p in places for one in p.former}
    topic = pulsar.system_topic(DEAD_LETTERS_TOPIC)
    return Sessions(
        {name: known[name] for name in names},
        {name: _remedy(name, known[name], mine=known[name].family in families, topic=topic) for name in names},
    )


def _remedy(name: str, session: Remembered, *, mine: bool, topic: str) -> str:
    if mine:
        return (
            "start ingest: with the shards it had then a worker reads it, with these settings the first one drains "
            "and deletes it"
        )
    prefix = name.removesuffix(session.client_id) if session.client_id else ""
    client_id = session.family.removeprefix(prefix)
    return (
        f"start the deployment that it belongs to; or list {client_id!r} in mqtt.former_client_ids (of that broker) "
        "and start ingest, which drains and deletes it; or, when its broker is gone for good: pulsar-admin topics "
        f"remove-properties --key {SessionMemory.key(name)} {topic}"
    )


def show_sessions(found: Sessions, console: Console, *, told: str = "") -> None:
    """Print a line for each session that nobody reads, and why they are not known unless that was ``told``."""
    for name, session in found.unserved.items():
        where = f" at {session.broker}" if session.broker else ""
        filters = ", ".join(session.granted) or "no filter"
        line = f"the MQTT session {session.client_id or name!r}{where} ({filters}) queues messages that nobody reads"
        console.print(f"[red]{markup(line)}[/]: {markup(found.remedies[name])}", soft_wrap=True)
    if found.problem not in ("", told):
        console.print(f"MQTT sessions: {markup(found.problem)}", soft_wrap=True)
