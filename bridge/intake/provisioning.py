"""Prepares Pulsar: namespaces with policies and dead letters before the first message, topics at their first message.

A topic without subscription and retention loses its messages at once (H11). A time-to-live or an eviction removes
acknowledged messages. A backlog quota that raises exceptions makes producers drop their pending messages (H1 c).
So the bridge sets the policies and reads the result, because only the policies in force count.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from bridge.contract import COMMANDS_TOPIC, DEAD_LETTERS_TOPIC, RESUME_TOPIC
from bridge.errors import DeniedError, PulsebridgeError, RefusedError, TerminalError
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import PulsarClient
from bridge.pulsar.dial import dial
from bridge.pulsar.provisioning import create_topic, log_unchecked, try_writing, verify
from bridge.pulsar.provisioning_plan import ingest_needs, instances_need, policies_lack
from bridge.settings.pulsar import PulsarSettings

__all__ = ["TopicMaker", "known_topics", "provision", "verify_policies"]

log = structlog.get_logger("provisioning")
_ingest_log = structlog.get_logger("ingest")


def provision(admin: PulsarAdmin, readings: Sequence[str] = (), *, presence: bool = True, resume: bool = True) -> None:
    """Create or verify namespaces, policies and the dead letter topic, as set in ``pulsar.provision``.

    ``verify`` requires ``readings``, the topics known beforehand (``readings_topics.static_topics``). It also requires
    the topics of ``presence`` and ``resume`` if set. ``create`` leaves these to the first device, so that a start does
    not wait for them. Raises TransientError if Pulsar is unreachable and DeniedError if a step is not allowed. Raises
    TerminalError with the remedy if something is missing or a policy would lose messages.
    """
    settings = admin.settings
    dead_letters = settings.system_topic(DEAD_LETTERS_TOPIC)
    if settings.provision == "off":
        dial(settings, settings.connection_timeout)  # else nothing connects to Pulsar before the first message
        try_writing(settings, (dead_letters, *readings))
        log.info(
            "pulsar.provision is off; not checked: retention, TTL, quota policy, topics, dead letters; "
            "only push trims protocol-instances"
        )
        return
    if settings.provision == "verify":
        log_unchecked(verify(admin, ingest_needs(settings, readings, presence=presence, resume=resume)))
        try_writing(settings, (dead_letters, *readings))
        return
    admin.provision_namespaces()
    verify_policies(admin)
    admin.create_partitioned(dead_letters, settings.command_partitions)
    create_topic(admin, instances_need(settings))


def verify_policies(admin: PulsarAdmin) -> None:
    """Check the policies of all namespaces. Raises TerminalError with those that would lose messages."""
    problems: list[str] = []
    for name in admin.settings.all_namespaces:
        policies = admin.request("GET", f"/namespaces/{name}")
        problems += [f"{name}: {s.why} ({s.shell})" for s in policies_lack(name, policies, admin.settings)]
    if problems:
        raise TerminalError("; ".join(problems), remedy="run the named pulsar-admin commands, then restart")


def known_topics(admin: PulsarAdmin) -> list[str]:
    """Return the local names of the readings topics, with ``tenant/namespace/`` in further namespaces.

    The list is empty if ``pulsar.provision`` is off.
    """
    if admin.settings.provision == "off":
        return []
    usual, *others = admin.settings.readings_namespaces
    found = [t.rsplit("/", 1)[1] for t in admin.topics(usual)]
    return found + [f"{name}/{t.rsplit('/', 1)[1]}" for name in others for t in admin.topics(name)]


class TopicMaker:
    """Creates the topics of producers, as ``pulsar.provision`` allows.

    Any thread may call its methods, several at a time. They call Pulsar: call them outside the loop.
    """

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
                _ingest_log.warning(
                    "topic was deleted with its subscriptions and their messages; ingest re-created it. Action: make "
                    "its readers resubscribe",
                    topic=topic,
                )
        except PulsebridgeError as e:
            _ingest_log.debug("the topic cannot be re-created", topic=topic, why=str(e))

    def check_policies(self) -> None:
        """Log changed policies that may cause a producer's error (H1 c)."""
        if self._admin.settings.provision == "off":
            return
        try:
            verify_policies(self._admin)
        except DeniedError as e:
            _ingest_log.debug("policies may not be read", why=e.what)
        except TerminalError as e:
            _ingest_log.warning("a policy refuses or loses messages. Action: run the named command", why=e.what)
        except PulsebridgeError as e:
            _ingest_log.debug("policies could not be read", why=e.what)
