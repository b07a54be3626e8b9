"""What must be in Pulsar before the first message is read: namespaces that hold messages, topics, dead letters.

A topic without subscription and retention loses its messages at once (H11); a time-to-live or an eviction would
take what was acknowledged; a backlog quota that raises exceptions makes producers drop what they hold (H1 c).
So the policies are set, and then read back: what the cluster really does decides, not what was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from bridge.contract import DEAD_LETTERS_TOPIC
from bridge.errors import TerminalError
from bridge.provisioning import create_topic, say_unchecked, try_writing, verify
from bridge.provisioning_plan import ingest_needs, instances_need, policies_lack
from bridge.pulsar_admin import PulsarAdmin
from bridge.pulsar_dial import dial

__all__ = ["known_topics", "provision", "verify_policies"]

log = structlog.get_logger("provisioning")


def provision(admin: PulsarAdmin, readings: Sequence[str] = (), *, presence: bool = True, resume: bool = True) -> None:
    """Create, or verify, the namespaces with their policies and the dead letter topic, as ``pulsar.provision`` says.

    ``readings`` are the topics known beforehand (``readings_topics.static_topics``), which ``verify`` wants to find, and with
    ``presence`` and ``resume`` the topics of those; the first device makes them, so that a start waits for none. Raises
    TransientError when Pulsar cannot be reached, TerminalError with the remedy when something is missing or a policy
    would lose messages, DeniedError when a step is not allowed.
    """
    settings = admin.settings
    dead_letters = settings.system_topic(DEAD_LETTERS_TOPIC)
    if settings.provision == "off":
        dial(settings, settings.connection_timeout_s)  # else nothing sees Pulsar before the first message
        try_writing(settings, (dead_letters, *readings))
        log.info(
            "pulsar.provision is off; not checked: retention, TTL, quota policy, topics, dead letters; "
            "protocol-instances is trimmed by push alone"
        )
        return
    if settings.provision == "verify":
        say_unchecked(verify(admin, ingest_needs(settings, readings, presence=presence, resume=resume)))
        try_writing(settings, (dead_letters, *readings))
        return
    admin.provision_namespaces()
    verify_policies(admin)
    admin.create_partitioned(dead_letters, settings.command_partitions)
    create_topic(admin, instances_need(settings))


def verify_policies(admin: PulsarAdmin) -> None:
    """Read the policies of all namespaces. Raises TerminalError naming each that would lose messages."""
    problems: list[str] = []
    for name in admin.settings.all_namespaces:
        policies = admin.request("GET", f"/namespaces/{name}")
        problems += [f"{name}: {s.why} ({s.shell})" for s in policies_lack(name, policies, admin.settings)]
    if problems:
        raise TerminalError("; ".join(problems), remedy="run the named pulsar-admin commands, then start again")


def known_topics(admin: PulsarAdmin) -> list[str]:
    """Return the topics of the readings namespaces: local names, with ``tenant/namespace/`` before those of others.

    None where the admin is not to be asked.
    """
    if admin.settings.provision == "off":
        return []
    usual, *others = admin.settings.readings_namespaces
    found = [t.rsplit("/", 1)[1] for t in admin.topics(usual)]
    return found + [f"{name}/{t.rsplit('/', 1)[1]}" for name in others for t in admin.topics(name)]
