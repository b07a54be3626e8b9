"""The MQTT sessions of a deployment of ingest: brokers, client ids, filters, their advertised and their stored form.

Pulsar stores the filters of each session, in a property of the dead letter topic. They must outlive the process and the
machine, like the sessions. A worker that starts on another machine must not resubscribe (H6), and a session without a
worker must not be forgotten (H7).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Final

from bridge.contract import DEAD_LETTERS_TOPIC
from bridge.contract.decoding import checked_text, checked_whole, decodes, json_of_record
from bridge.errors import ContractError
from bridge.pulsar.admin import PulsarAdmin
from bridge.routing.sharding import Remembered, own_sessions, sessions
from bridge.settings import Settings
from bridge.settings.mqtt import MqttSettings

__all__ = [
    "SessionSlot",
    "advertised",
    "forget_session",
    "read_advertised",
    "read_session",
    "session_property",
    "slots",
    "store_session",
    "stored_sessions",
]

_PREFIX: Final = "pulsebridge.session."


@dataclass(frozen=True, slots=True)
class SessionSlot:
    """One session of a deployment at one broker. Names are client ids, after ``prefix``."""

    name: str
    family: str
    sessions: Mapping[str, tuple[str, ...]]
    """All sessions of the family, with the filters of each."""
    prefix: str = ""
    """Precedes client ids if ingest has several brokers, so that the names of sessions differ."""
    broker: str = ""
    """The broker's address."""
    former: tuple[str, ...] = ()
    """Former families of this deployment at this broker: their sessions are drained and deleted."""

    @property
    def filters(self) -> tuple[str, ...]:
        """The filters of this session."""
        return self.sessions[self.name]

    def client_id(self, name: str) -> str:
        """Return the client id of a session of the family."""
        return name.removeprefix(self.prefix)

    def remembered(self, name: str, granted: Mapping[str, int], released: tuple[str, ...] = ()) -> Remembered:
        """Return the state to store for a session of the family."""
        return Remembered(self.family, granted, released, self.broker, self.client_id(name))


def slots(settings: Settings, *, own: bool) -> Iterator[tuple[str, MqttSettings, SessionSlot]]:
    """Yield name, connection and session of each link: with ``own`` those of this process (its shard), else of all."""
    ingest, pulsar = settings.ingest, settings.pulsar
    for link, mqtt in settings.links().items():
        prefix = f"{link}." if ingest.links else ""
        family = prefix + mqtt.client_id
        wanted = sessions(family, ingest, pulsar)
        former = tuple(prefix + one for one in mqtt.former_client_ids)
        for session in own_sessions(family, ingest, pulsar) if own else wanted:
            slot = SessionSlot(session, family, wanted, prefix, mqtt.address, former)
            named = mqtt.model_copy(update={"client_id": slot.client_id(session)})
            yield link + session.removeprefix(family), named, slot


def advertised(settings: Settings) -> str:
    """Return broker and client id of each link, as the JSON that an instance advertises."""
    return json.dumps(
        {name: {"broker": mqtt.address, "client_id": mqtt.client_id} for name, mqtt, _ in slots(settings, own=True)}
    )


def read_advertised(data: str) -> set[tuple[str, str]]:
    """Return broker and client id of each advertised session; none from another version."""
    with suppress(ContractError):
        return _read_advertised(data)
    return set()


@decodes("the sessions that ingest advertises")
def _read_advertised(data: str) -> set[tuple[str, str]]:
    return {(checked_text(v["broker"]), checked_text(v["client_id"])) for v in json_of_record(data).values()}


# --- stored in Pulsar -------------------------------------------------------------------------------------------
# These functions block. They raise TransientError if Pulsar's admin is unreachable, DeniedError without the right.


def session_property(name: str) -> str:
    """Return the name of a session's property."""
    return _PREFIX + name


def stored_sessions(admin: PulsarAdmin) -> dict[str, Remembered]:
    """Return the sessions of all deployments by name; empty if ``pulsar.provision`` is off."""
    if admin.settings.provision == "off":
        return {}
    found: dict[str, Remembered] = {}
    for name, text in admin.properties(admin.settings.system_topic(DEAD_LETTERS_TOPIC), _PREFIX).items():
        with suppress(ContractError):  # an unknown session resubscribes
            found[name] = read_session(text)
    return found


def store_session(admin: PulsarAdmin, name: str, session: Remembered) -> None:
    """Store the filters of a session; only the tenant's administrator may set a topic's properties."""
    if admin.settings.provision != "off":
        text = json.dumps(asdict(session), sort_keys=True)
        admin.set_property(admin.settings.system_topic(DEAD_LETTERS_TOPIC), session_property(name), text)


def forget_session(admin: PulsarAdmin, name: str) -> None:
    """Forget a session that the broker no longer has."""
    admin.remove_property(admin.settings.system_topic(DEAD_LETTERS_TOPIC), session_property(name))


@decodes("a session of ingest")
def read_session(text: str) -> Remembered:
    """Decode a stored session. Raises ContractError if the text is not one."""
    stored = json_of_record(text)
    return Remembered(
        checked_text(stored["family"]),
        {checked_text(name): checked_whole(qos) for name, qos in stored["granted"].items()},
        tuple(map(checked_text, stored["released"])),
        checked_text(stored.get("broker", "")),
        checked_text(stored.get("client_id", "")),
    )
