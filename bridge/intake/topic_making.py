"""Creates the topics of producers, as ``pulsar.provision`` allows. It calls Pulsar: call it outside the loop."""

from __future__ import annotations

import structlog

from bridge.contract import COMMANDS_TOPIC, RESUME_TOPIC
from bridge.errors import DeniedError, PulsebridgeError, RefusedError, TerminalError
from bridge.intake.provisioning import verify_policies
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import PulsarClient
from bridge.settings.pulsar import PulsarSettings

__all__ = ["TopicMaker"]

log = structlog.get_logger("ingest")


class TopicMaker:
    """Creates topics. Any thread may call its methods, several at a time."""

    def __init__(self, client: PulsarClient, admin: PulsarAdmin, dead_letter_topic: str) -> None:
        self._client = client
        self._admin = admin
        self._dead_letter_topic = dead_letter_topic

    def partitions_of(self, topic: str) -> int:
        """Return the number of partitions of a topic, 0 without partitions; create it if allowed.

        Raises RefusedError with the command that creates it, DeniedError or TransientError.
        """
        settings = self._admin.settings
        wanted = settings.partitions
        if topic == settings.system_topic(RESUME_TOPIC):
            wanted = self._commands_partitions(settings)
        elif topic == self._dead_letter_topic:
            wanted = settings.command_partitions
        if settings.provision == "create":
            return self._admin.create_partitioned(topic, wanted)
        partitions = self._client.partitions(topic)
        if partitions not in ([], [topic]):
            return len(partitions)
        if not partitions or (settings.provision == "verify" and not self._admin.exists(topic)):
            raise RefusedError(
                f"the topic {topic} does not exist, and pulsar.provision is {settings.provision}",
                remedy=f"pulsar-admin topics create-partitioned-topic {topic} --partitions {wanted}",
            )
        return 0

    def _commands_partitions(self, settings: PulsarSettings) -> int:
        """Return their number: a request has the partition number of the device's commands (H28)."""
        partitions = self._client.partitioned(settings.system_topic(COMMANDS_TOPIC))
        return len(partitions) or settings.command_partitions

    def recreate(self, topic: str, partitions: int) -> None:
        """Re-create a topic that another client deleted, as it was; the next attempt finds it."""
        if self._admin.settings.provision != "create":
            return
        try:
            if self._admin.make(topic, partitions):
                log.warning(
                    "topic was deleted with its subscriptions and their messages; ingest re-created it. Action: make "
                    "its readers resubscribe",
                    topic=topic,
                )
        except PulsebridgeError as e:
            log.debug("the topic cannot be re-created", topic=topic, why=str(e))

    def check_policies(self) -> None:
        """Log changed policies that may cause a producer's error (H1 c)."""
        if self._admin.settings.provision == "off":
            return
        try:
            verify_policies(self._admin)
        except DeniedError as e:
            log.debug("policies may not be read", why=e.what)
        except TerminalError as e:
            log.warning("a policy refuses or loses messages. Action: run the named command", why=e.what)
        except PulsebridgeError as e:
            log.debug("policies could not be read", why=e.what)
