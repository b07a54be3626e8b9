"""Makes the topics that lanes write to, as ``pulsar.provision`` allows it. It asks Pulsar: call it outside the loop."""

from __future__ import annotations

import structlog

from bridge.contract import COMMANDS_TOPIC, RESUME_TOPIC
from bridge.errors import DeniedError, PulsebridgeError, RefusedError, TerminalError
from bridge.ingest.provisioning import verify_policies
from bridge.pulsar_admin import PulsarAdmin
from bridge.pulsar_client import PulsarClient
from bridge.settings.pulsar import PulsarSettings

__all__ = ["TopicMaker"]

log = structlog.get_logger("ingest")


class TopicMaker:
    """Its methods may be called from any thread, several at a time."""

    def __init__(self, client: PulsarClient, admin: PulsarAdmin, dead_letter_topic: str) -> None:
        self._client = client
        self._admin = admin
        self._dead_letter_topic = dead_letter_topic

    def partitions_of(self, topic: str) -> int:
        """Return the number of partitions of a topic, 0 where it was made without; it is made if it may be.

        Raises RefusedError with the command that makes it, DeniedError or TransientError.
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
                f"the topic {topic} is not there, and pulsar.provision is {settings.provision}",
                remedy=f"pulsar-admin topics create-partitioned-topic {topic} --partitions {wanted}",
            )
        return 0

    def _commands_partitions(self, settings: PulsarSettings) -> int:
        """A device's request stands in the partition of the number that its commands have (H28)."""
        there = self._client.partitioned(settings.system_topic(COMMANDS_TOPIC))
        return len(there) or settings.command_partitions

    def make_again(self, topic: str, partitions: int) -> None:
        """Make a topic that was deleted behind our back, as it was; the next attempt finds it."""
        if self._admin.settings.provision != "create":
            return
        try:
            if self._admin.make(topic, partitions):
                log.warning(
                    "topic was deleted, and with it the subscriptions that held its messages; it is made anew; see "
                    "that its readers subscribe again",
                    topic=topic,
                )
        except PulsebridgeError as e:
            log.debug("the topic cannot be made again", topic=topic, why=str(e))

    def check_policies(self) -> None:
        """Look whether somebody changed the policies that a producer's error may come from (H1 c)."""
        if self._admin.settings.provision == "off":
            return
        try:
            verify_policies(self._admin)
        except DeniedError as e:
            log.debug("policies may not be read", why=e.what)
        except TerminalError as e:
            log.warning("a policy refuses or loses messages; run the command that mends it", why=e.what)
        except PulsebridgeError as e:
            log.debug("policies could not be read", why=e.what)
