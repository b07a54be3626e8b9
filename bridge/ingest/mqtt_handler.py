"""The protocol handler ``mqtt``: it connects a link to each MQTT broker, without listeners."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import structlog

from bridge.ingest.links import LinkRunner
from bridge.ingest.sessions import advertised, own_slots, read_advertised
from bridge.protocols.handler import ProtocolHandler, Service
from bridge.settings import Settings

__all__ = ["MqttHandler"]

log = structlog.get_logger("ingest")


class MqttHandler(ProtocolHandler):
    """Runs the links of ``Settings.links``, each in a separate thread."""

    def __init__(self) -> None:
        self.links: dict[str, LinkRunner] = {}
        self._settings = Settings()
        self._service: Service | None = None
        self._ended: set[str] = set()
        self._lock = threading.Lock()

    @property
    def protocol_name(self) -> str:
        """``mqtt``."""
        return "mqtt"

    def initialize(self, settings: Settings) -> None:
        """Keep the settings; connect to nothing."""
        self._settings = settings

    def protocol_data_to_advertise(self) -> str:
        """Return the brokers and client ids of the links, as JSON."""
        return advertised(self._settings)

    def start(self, service: Service) -> None:
        """Start every link."""
        self._service = service
        for name, mqtt, slot in own_slots(self._settings):
            self.links[name] = LinkRunner(
                name,
                self._settings.model_copy(update={"mqtt": mqtt}),
                service,
                slot,
                alone=not self._settings.ingest.links,
                ended=self._link_ended,
            )
        for other, data in service.advertised(self.protocol_name).items():
            self._compare(other, data)
        for link in self.links.values():
            link.start()

    def _compare(self, other: str, data: str) -> None:
        """Log an instance that advertises a session of this one; only the broker decides (H10)."""
        theirs = read_advertised(data)
        for name, mqtt, _ in own_slots(self._settings):
            if (mqtt.address, mqtt.client_id) in theirs:
                log.info(
                    "another instance recently used this link's client id; if it still runs, stop it",
                    link=name,
                    client_id=mqtt.client_id,
                    instance=other,
                )

    def _link_ended(self, link: LinkRunner, error: BaseException | None) -> None:
        # On the link's thread. An unusable broker does not affect the others; the last one ends the service. With one
        # broker each of its sessions ends the service, because no other process would read it.
        assert self._service is not None
        if error is None:
            return
        with self._lock:
            self._ended.add(link.name)
            last = len(self._ended) == len(self.links)
        if last or not self._settings.ingest.links:
            self._service.failed(error)
        else:
            log.error(
                "an MQTT link has ended for good, the others continue. Action: fix the named cause and restart",
                link=link.name,
                why=str(error),
            )
            self._service.changed()

    def readiness(self) -> Mapping[str, bool]:
        """Return for each link whether it is connected and subscribed."""
        return {name: link.ready for name, link in self.links.items()}

    def close(self) -> None:
        """Stop reading, wait for the receipts of messages, acknowledge, and disconnect, all links at once."""
        for link in self.links.values():
            link.wake()
        for link in self.links.values():
            link.join()
