"""What the MQTT broker's sessions of ingest are subscribed to, kept in Pulsar.

It must outlive the process and the machine, like the sessions themselves: a worker that starts elsewhere must not
subscribe anew (H6), and a session that nobody serves any more must not be forgotten (H7). It stands in properties of
the dead letter topic, one for each session.
"""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import quote

from bridge.contract import DEAD_LETTERS_TOPIC
from bridge.decoding import checked_text, checked_whole, decodes, json_of_record
from bridge.errors import ContractError
from bridge.pulsar_admin import PulsarAdmin, rest_path
from bridge.settings.pulsar import PulsarSettings
from bridge.sharding import Remembered

__all__ = ["SessionMemory"]

_PREFIX: Final = "pulsebridge.session."


class SessionMemory:
    """The sessions by name. Calls block; use them outside the loop thread once it runs.

    They raise TransientError when Pulsar's admin cannot be reached, DeniedError when it does not allow them.
    """

    def __init__(self, settings: PulsarSettings) -> None:
        self._path = f"/{rest_path(settings.system_topic(DEAD_LETTERS_TOPIC))}/properties"

    @staticmethod
    def key(name: str) -> str:
        """Return the name of the property that keeps a session."""
        return _PREFIX + name

    def load(self, admin: PulsarAdmin) -> dict[str, Remembered]:
        """Return every session that is known, of whatever deployment; none where admin is not to be asked."""
        if admin.settings.provision == "off":
            return {}
        found = admin.request("GET", self._path, accept=(404,)) or {}
        told = {name.removeprefix(_PREFIX): text for name, text in found.items() if name.startswith(_PREFIX)}
        read = {name: _read(text) for name, text in told.items()}
        return {name: session for name, session in read.items() if session is not None}

    def store(self, admin: PulsarAdmin, name: str, session: Remembered) -> None:
        """Keep what a session has; a topic's properties belong to its tenant's administrator."""
        if admin.settings.provision == "off":
            return
        value = {
            "family": session.family,
            "granted": dict(session.granted),
            "released": list(session.released),
            "broker": session.broker,
            "client_id": session.client_id,
        }
        admin.request("PUT", self._path, body={self.key(name): json.dumps(value, sort_keys=True)})

    def forget(self, admin: PulsarAdmin, name: str) -> None:
        """Forget a session that the broker has no more."""
        admin.request("DELETE", f"{self._path}?key={quote(self.key(name), safe='')}", accept=(404,))


def _read(text: str) -> Remembered | None:
    """Return what was stored, None when it is not ours: then the session counts as unknown and subscribes anew."""
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
