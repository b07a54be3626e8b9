"""State of the ingest and push processes for ``pulsebridge status``: protocols, listeners, topic owners and shares."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from bridge.contract import INSTANCES_TOPIC, partition_names
from bridge.errors import ContractError, PulsebridgeError
from bridge.protocols.board import read_board
from bridge.protocols.records import InstanceRecord
from bridge.protocols.sharing import GROUPS, PUSH_PROTOCOL, Beat, names_share
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import PulsarClient
from bridge.settings import Settings

__all__ = ["Instances", "PushProcess", "look_at_instances"]

_PATIENCE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class PushProcess:
    """A push process and its share, as it advertises them."""

    instance: str
    state: str
    started_ms: int
    partitions: list[int]
    """What it owns, or is taking over."""
    groups: bool
    """Whether it gives group commands to their members."""
    away: list[str] = field(default_factory=list)
    """The links whose MQTT brokers it cannot reach."""


@dataclass(frozen=True, slots=True)
class Instances:
    """The advertised instances, and the Pulsar broker that owns each partition of their topics."""

    records: list[tuple[InstanceRecord, str]] = field(default_factory=list)
    """Each record of ingest with its state: ``starting``, ``running``, ``stopping`` or ``gone``."""
    owners: dict[str, dict[str, str]] = field(default_factory=dict)
    """Topic → partition → the owner's service URL, empty if it is not known."""
    problem: str = ""
    """Reason for missing data, empty if the data is complete."""
    push: list[PushProcess] = field(default_factory=list)

    @property
    def alive(self) -> bool:
        """Whether at least one instance of ingest runs."""
        return any(state != "gone" for _, state in self.records)


def look_at_instances(settings: Settings) -> Instances:
    """Read the instances topic, and look up the owners of the topics; ``problem`` contains an error."""
    pulsar = settings.pulsar.model_copy(update={"operation_timeout": _PATIENCE_S})
    try:
        with PulsarAdmin(pulsar, timeout_s=_PATIENCE_S) as admin:
            if admin.partition_count(pulsar.system_topic(INSTANCES_TOPIC)) == 0:
                return Instances()
            with PulsarClient(pulsar) as client:
                board = read_board(client)
            now_ms = time.time_ns() // 1_000_000
            states = [(record, _state(record, now_ms)) for record in board]
            records = [one for one in states if not any(map(names_share, one[0].protocols))]
            push = [_push_process(record, state) for record, state in states if PUSH_PROTOCOL in record.protocols]
            owners, problem = _owners(admin, sorted({t for r, state in records if state != "gone" for t in r.topics}))
    except PulsebridgeError as e:
        return Instances(problem=e.what)
    return Instances(records, owners, problem, push)


def _state(record: InstanceRecord, now_ms: int) -> str:
    return "gone" if record.ended(now_ms) else record.state


def _push_process(record: InstanceRecord, state: str) -> PushProcess:
    beat = Beat(frozenset(), frozenset())
    with suppress(ContractError):  # of a later release
        beat = Beat.decode(record.protocols[PUSH_PROTOCOL].data)
    share = sorted(beat.has - {GROUPS})
    return PushProcess(record.instance, state, record.started_ms, share, GROUPS in beat.has, sorted(beat.away))


def _owners(admin: PulsarAdmin, topics: list[str]) -> tuple[dict[str, dict[str, str]], str]:
    found: dict[str, dict[str, str]] = {}
    try:
        for topic in topics:
            count = admin.partition_count(topic)
            partitions = partition_names(topic, count)
            found[topic] = {partition: admin.owner(partition) for partition in partitions}
    except PulsebridgeError as e:
        return found, e.what
    return found, ""
