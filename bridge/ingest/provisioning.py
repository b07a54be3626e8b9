"""What must be in Pulsar before the first message is read: namespaces that hold messages, topics, dead letters.

A topic without subscription and retention loses its messages at once (H11); a time-to-live or an eviction would
take what was acknowledged; a backlog quota that raises exceptions makes producers drop what they hold (H1 c).
So the policies are set, and then read back: what the cluster really does decides, not what was asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import structlog

from bridge.contract import DEAD_LETTERS_TOPIC
from bridge.errors import DeniedError, TerminalError
from bridge.provisioning import create_topic, say_unchecked, try_writing, verify
from bridge.provisioning_plan import ingest_needs, instances_need, policies_lack
from bridge.pulsar_admin import PulsarAdmin, rest_path
from bridge.pulsar_dial import dial
from bridge.settings import Settings
from bridge.settings.pulsar import PulsarSettings
from bridge.topic_patterns import Star
from bridge.topic_rules import compile_rules

__all__ = ["SessionMemory", "known_topics", "provision", "static_topics", "verify_policies"]

log = structlog.get_logger("provisioning")


def provision(admin: PulsarAdmin, readings: Sequence[str] = ()) -> None:
    """Create, or verify, the namespaces with their policies and the dead letter topic, as ``pulsar.provision`` says.

    ``readings`` are the topics known beforehand (``static_topics``), which ``verify`` wants to find. Raises
    TransientError when Pulsar cannot be reached, TerminalError with the remedy when something is missing or a policy
    would lose messages, DeniedError when a step is not allowed.
    """
    settings = admin.settings
    dead_letters = settings.system_topic(DEAD_LETTERS_TOPIC)
    if settings.provision == "off":
        dial(settings, settings.connection_timeout_s)  # else nothing sees Pulsar before the first message
        try_writing(settings, (dead_letters, *readings))
        log.info("pulsar.provision is off; not checked: retention, TTL, quota policy, topics, dead letters")
        return
    if settings.provision == "verify":
        say_unchecked(verify(admin, ingest_needs(settings, readings)))
        try_writing(settings, (dead_letters, *readings))
        return
    admin.provision_namespaces()
    verify_policies(admin)
    admin.create_partitioned(dead_letters, settings.command_partitions)
    create_topic(admin, instances_need(settings))


def static_topics(settings: Settings) -> list[str]:
    """Return the full names of the readings topics that rules name without a capture."""
    rules, _ = compile_rules(settings.ingest, settings.pulsar)
    found = []
    for rule in rules:
        parts = rule.local_pattern
        if not any(isinstance(part, Star) for part in parts):
            local = "".join(str(part) for part in parts)
            found += [
                settings.pulsar.readings_topic(local, name) for name in sorted(rule.namespaces, key=str)
            ]
    return list(dict.fromkeys(found))


def verify_policies(admin: PulsarAdmin) -> None:
    """Read the policies of all namespaces. Raises TerminalError naming each that would lose messages."""
    problems: list[str] = []
    for name in admin.settings.all_namespaces:
        policies = admin.request("GET", f"/namespaces/{name}")
        problems += [f"{name}: {s.why} ({s.shell})" for s in policies_lack(name, policies, admin.settings)]
    if problems:
        raise TerminalError(
            "; ".join(problems), remedy="run the named pulsar-admin commands, then start again"
        )


def known_topics(admin: PulsarAdmin) -> list[str]:
    """Return the topics of the readings namespaces: local names, with ``tenant/namespace/`` before those of others.

    None where the admin is not to be asked.
    """
    if admin.settings.provision == "off":
        return []
    usual, *others = admin.settings.readings_namespaces
    found = [t.rsplit("/", 1)[1] for t in admin.topics(usual)]
    return found + [f"{name}/{t.rsplit('/', 1)[1]}" for name in others for t in admin.topics(name)]


class SessionMemory:
    """The filters that the broker's session has, kept as a property of the dead letter topic.

    It must outlive the process and the machine, like the session itself: a worker that starts elsewhere must
    not subscribe anew. Calls block; use them outside the loop thread once it runs.
    """

    def __init__(self, settings: PulsarSettings, client_id: str) -> None:
        self._settings = settings
        self._name = f"pulsebridge.session.{client_id}"
        self._path = f"/{rest_path(settings.system_topic(DEAD_LETTERS_TOPIC))}/properties"

    def load(self, admin: PulsarAdmin) -> dict[str, int] | None:
        """Return the filters with their QoS, None when nothing is known."""
        if admin.settings.provision == "off":
            return None
        text = (admin.request("GET", self._path, accept=(404,)) or {}).get(self._name)
        if text is None:
            return None
        return {str(name): int(qos) for name, qos in json.loads(text).items()}

    def store(self, admin: PulsarAdmin, granted: Mapping[str, int]) -> None:
        """Keep the filters, where this role may: a topic's properties belong to its tenant's administrator.

        Unknown filters are subscribed anew. With MQTT 5 that brings no retained message again (Retain Handling 1).
        """
        if admin.settings.provision == "off":
            return
        try:
            admin.request("PUT", self._path, body={self._name: json.dumps(dict(granted), sort_keys=True)})
        except DeniedError as e:
            log.info(
                "the subscribed filters are not kept; with MQTT 3 retained messages come again", why=e.what
            )
