"""Which MQTT sessions a deployment of ingest has, at which brokers, as whom; and what is advertised of them. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bridge.decoding import checked_text, decodes, json_of_record
from bridge.errors import ContractError
from bridge.settings import Settings
from bridge.settings.mqtt import MqttSettings
from bridge.sharding import Remembered, own_sessions, sessions

__all__ = ["Place", "advertised", "all_places", "own_places", "read_advertised"]


@dataclass(frozen=True, slots=True)
class Place:
    """One session among those of its deployment at one broker. Names are client ids, after ``prefix``."""

    name: str
    family: str
    sessions: Mapping[str, tuple[str, ...]]
    """All sessions of the family, with the filters of each."""
    prefix: str = ""
    """Set before client ids where ingest has several brokers, so that their sessions do not meet."""
    broker: str = ""
    """The broker's address."""
    former: tuple[str, ...] = ()
    """Families that this deployment had before at this broker: their sessions are drained and deleted."""

    @property
    def filters(self) -> tuple[str, ...]:
        """What this session subscribes to."""
        return self.sessions[self.name]

    def client_id(self, name: str) -> str:
        """Return the client id of a session of the family."""
        return name.removeprefix(self.prefix)

    def remembered(self, name: str, granted: Mapping[str, int], released: tuple[str, ...] = ()) -> Remembered:
        """Return what is kept of a session of the family."""
        return Remembered(self.family, granted, released, self.broker, self.client_id(name))


def _places(settings: Settings, *, own: bool) -> Iterator[tuple[str, MqttSettings, Place]]:
    ingest, pulsar = settings.ingest, settings.pulsar
    for link, mqtt in settings.links().items():
        prefix = f"{link}." if ingest.links else ""
        family = prefix + mqtt.client_id
        wanted = sessions(family, ingest, pulsar)
        former = tuple(prefix + one for one in mqtt.former_client_ids)
        for session in own_sessions(family, ingest, pulsar) if own else wanted:
            place = Place(session, family, wanted, prefix, mqtt.address, former)
            named = mqtt.model_copy(update={"client_id": place.client_id(session)})
            yield link + session.removeprefix(family), named, place


def own_places(settings: Settings) -> list[tuple[str, MqttSettings, Place]]:
    """Return a name, the connection and the session of each link of this process: for each broker, those of its shard."""
    return list(_places(settings, own=True))


def all_places(settings: Settings) -> list[Place]:
    """Return the sessions of the whole deployment, over all its workers."""
    return [place for _, _, place in _places(settings, own=False)]


def advertised(settings: Settings) -> str:
    """Return the brokers that this process dials, and as whom, by link, as the JSON that an instance advertises."""
    return json.dumps(
        {name: {"broker": mqtt.address, "client_id": mqtt.client_id} for name, mqtt, _ in own_places(settings)}
    )


def read_advertised(data: str) -> set[tuple[str, str]]:
    """Return broker and client id of each session that an instance advertises; none when it is of another version."""
    try:
        return _decoded(data)
    except ContractError:
        return set()


@decodes("what ingest advertises")
def _decoded(data: str) -> set[tuple[str, str]]:
    return {(checked_text(v["broker"]), checked_text(v["client_id"])) for v in json_of_record(data).values()}
