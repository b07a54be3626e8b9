"""Prepares Pulsar: namespaces with policies and dead letters before the first message, topics at their first message.

A topic without subscription and retention loses its messages at once (H11). A time-to-live or an eviction removes
acknowledged messages. A backlog quota that raises exceptions makes producers drop their pending messages (H1 c).
So the bridge sets the policies and reads the result, because only the policies in force count.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from bridge.contract import DEAD_LETTERS_TOPIC, INSTANCES_TOPIC
from bridge.errors import TerminalError
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.dial import dial
from bridge.pulsar.provisioning import create_topic, log_unchecked, try_rights, verify
from bridge.pulsar.provisioning_plan import ingest_needs, policies_lack, topic_need

__all__ = ["known_topics", "provision", "verify_policies"]

log = structlog.get_logger("provisioning")


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
        try_rights(settings, write=(dead_letters, *readings))
        log.info(
            "pulsar.provision is off; not checked: retention, TTL, quota policy, topics, dead letters; "
            "only push trims protocol-instances"
        )
        return
    if settings.provision == "verify":
        log_unchecked(verify(admin, ingest_needs(settings, readings, presence=presence, resume=resume)))
        try_rights(settings, write=(dead_letters, *readings))
        return
    admin.provision_namespaces()
    verify_policies(admin)
    admin.create_partitioned(dead_letters, settings.command_partitions)
    create_topic(admin, topic_need(settings, INSTANCES_TOPIC))


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
