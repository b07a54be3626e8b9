"""Stores the filters of ingest's MQTT sessions in Pulsar.

They must outlive the process and the machine, like the sessions. A worker that starts on another machine must not
resubscribe (H6), and a session without a worker must not be forgotten (H7). The dead letter topic has one property for
each session.
"""

from __future__ import annotations

import json
from typing import Any, Final

from bridge.contract import DEAD_LETTERS_TOPIC
from bridge.contract.decoding import checked_text, checked_whole, decodes, json_of_record
from bridge.errors import ContractError
from bridge.pulsar.admin import PulsarAdmin
from bridge.routing.sharding import Remembered
from bridge.settings.pulsar import PulsarSettings

__all__ = ["SessionMemory"]

_PREFIX: Final = "pulsebridge.session."


class SessionMemory:
    """The sessions by name. Calls block: do not use them on the loop thread once it runs.

    They raise TransientError if Pulsar's admin is unreachable, DeniedError if it does not allow them.
    """

    def __init__(self, settings: PulsarSettings) -> None:
        self._topic = settings.system_topic(DEAD_LETTERS_TOPIC)

    @staticmethod
    def key(name: str) -> str:
        """Return the name of a session's property."""
        return _PREFIX + name

    def load(self, admin: PulsarAdmin) -> dict[str, Remembered]:
        """Return the known sessions of all deployments; empty if ``pulsar.provision`` is off."""
        if admin.settings.provision == "off":
            return {}
        read = {name: _read(text) for name, text in admin.properties(self._topic, _PREFIX).items()}
        return {name: session for name, session in read.items() if session is not None}

    def store(self, admin: PulsarAdmin, name: str, session: Remembered) -> None:
        """Store the filters of a session; only the tenant's administrator may set a topic's properties."""
        if admin.settings.provision == "off":
            return
        value = {
            "family": session.family,
            "granted": dict(session.granted),
            "released": list(session.released),
            "broker": session.broker,
            "client_id": session.client_id,
        }
        admin.set_property(self._topic, self.key(name), json.dumps(value, sort_keys=True))

    def forget(self, admin: PulsarAdmin, name: str) -> None:
        """Forget a session that the broker no longer has."""
        admin.remove_property(self._topic, self.key(name))


def _read(text: str) -> Remembered | None:
    """Return the stored session. None if it is not valid: it is then unknown and resubscribes."""
    try:
        return _decoded(text)
    except ContractError:
        return None


@decodes("a session of ingest")
def _decoded(text: str) -> Remembered:
    stored: Any = json_of_record(text)
    return Remembered(
        checked_text(stored["family"]),
        {checked_text(name): checked_whole(qos) for name, qos in stored["granted"].items()},
        tuple(map(checked_text, stored["released"])),
        checked_text(stored.get("broker", "")),
        checked_text(stored.get("client_id", "")),
    )
