"""The protocol handler ``mqtt``: it dials MQTT brokers, a link for each, and listens on nothing itself."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import structlog

from bridge.ingest.links import LinkRunner
from bridge.ingest.places import advertised, own_places, read_advertised
from bridge.protocols.handler import ProtocolHandler, Service
from bridge.settings import Settings

__all__ = ["MqttHandler"]

log = structlog.get_logger("ingest")


class MqttHandler(ProtocolHandler):
    """Runs the links of ``Settings.links``, each in a thread of its own."""

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
        """Keep the settings; nothing is dialled."""
        self._settings = settings

    def protocol_data_to_advertise(self) -> str:
        """Return the brokers that the links dial, and as whom, as JSON."""
        return advertised(self._settings)

    def start(self, service: Service) -> None:
        """Start every link."""
        self._service = service
        for name, mqtt, place in own_places(self._settings):
            self.links[name] = LinkRunner(
                name,
                self._settings.model_copy(update={"mqtt": mqtt}),
                service,
                place,
                alone=not self._settings.ingest.links,
                ended=self._link_ended,
            )
        for other, data in service.advertised(self.protocol_name).items():
            self._compare(other, data)
        for link in self.links.values():
            link.start()

    def _compare(self, other: str, data: str) -> None:
        """Tell when another instance says that it uses a session of ours; the broker has the last word (H10)."""
        theirs = read_advertised(data)
        for name, mqtt, _ in own_places(self._settings):
            if (mqtt.address, mqtt.client_id) in theirs:
                log.info(
                    "another instance used this link's client id lately; if it still runs, stop it",
                    link=name,
                    client_id=mqtt.client_id,
                    instance=other,
                )

    def _link_ended(self, link: LinkRunner, error: BaseException | None) -> None:
        # On the link's thread. A broker that cannot be used takes no other with it; the last one ends the service, and
        # where there is one broker, so does each of its sessions: nobody else would read it.
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
                "an MQTT link has ended for good, the others go on; mend what it names and start again",
                link=link.name,
                why=str(error),
            )
            self._service.changed()

    def readiness(self) -> Mapping[str, bool]:
        """Return for each link whether it is connected and subscribed."""
        return {name: link.ready for name, link in self.links.items()}

    def close(self) -> None:
        """Stop reading, wait for the receipts of what was read, acknowledge, and disconnect, all links at once."""
        for link in self.links.values():
            link.wake()
        for link in self.links.values():
            link.join()
