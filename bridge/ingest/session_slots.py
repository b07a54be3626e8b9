"""The MQTT sessions of a deployment of ingest: brokers, client ids, filters, and their advertised form."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bridge.contract.decoding import checked_text, decodes, json_of_record
from bridge.errors import ContractError
from bridge.routing.sharding import Remembered, own_sessions, sessions
from bridge.settings import Settings
from bridge.settings.mqtt import MqttSettings

__all__ = ["SessionSlot", "advertised", "all_slots", "own_slots", "read_advertised"]


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


def _slots(settings: Settings, *, own: bool) -> Iterator[tuple[str, MqttSettings, SessionSlot]]:
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


def own_slots(settings: Settings) -> list[tuple[str, MqttSettings, SessionSlot]]:
    """Return name, connection and session of each link of this process (its shard)."""
    return list(_slots(settings, own=True))


def all_slots(settings: Settings) -> list[SessionSlot]:
    """Return the sessions of the whole deployment, over all its workers."""
    return [slot for _, _, slot in _slots(settings, own=False)]


def advertised(settings: Settings) -> str:
    """Return broker and client id of each link, as the JSON that an instance advertises."""
    return json.dumps(
        {name: {"broker": mqtt.address, "client_id": mqtt.client_id} for name, mqtt, _ in own_slots(settings)}
    )


def read_advertised(data: str) -> set[tuple[str, str]]:
    """Return broker and client id of each advertised session; none from another version."""
    try:
        return _decoded(data)
    except ContractError:
        return set()


@decodes("the sessions that ingest advertises")
def _decoded(data: str) -> set[tuple[str, str]]:
    return {(checked_text(v["broker"]), checked_text(v["client_id"])) for v in json_of_record(data).values()}
