"""Which Pulsar topics exist, for one who names one of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

from bridge.contract import base_topic, full_name, namespace_of
from bridge.errors import ConfigError, RefusedError, TransientError
from bridge.pulsar.admin import PulsarAdmin
from bridge.settings import PulsarSettings

__all__ = ["refuse_missing"]

_SHOWN: Final = 10


def refuse_missing(names: Iterable[str], pulsar: PulsarSettings) -> None:
    """Raise ConfigError in one line for a name that is no topic, or one of a topic that does not exist.

    A role that may not ask Pulsar's admin passes, as does an admin that is away: the reader finds out.
    """
    with PulsarAdmin(pulsar) as admin:
        for name in names:
            try:
                topic = base_topic(full_name(name))
            except ValueError as e:
                raise ConfigError(
                    str(e), remedy="of an MQTT topic, `pulsebridge topics explain` shows the Pulsar topic"
                ) from e
            try:
                if admin.partition_count(topic):
                    continue
                existing = admin.topics(namespace_of(topic))
            except (RefusedError, TransientError):
                continue
            if topic not in existing:
                raise ConfigError(f"the topic {topic} does not exist", remedy=_remedy(topic, existing))


def _remedy(topic: str, existing: list[str]) -> str:
    near = difflib.get_close_matches(topic, existing, n=1, cutoff=0.9)
    if near:
        return f"did you mean {_short(near[0])}?"
    shown = ", ".join(map(_short, existing[:_SHOWN])) + ", …" * (len(existing) > _SHOWN)
    return f"topics of {namespace_of(topic)}: {shown or 'none'}; ingest makes the topic of a route"


def _short(topic: str) -> str:
    return topic.rpartition("/")[2]
