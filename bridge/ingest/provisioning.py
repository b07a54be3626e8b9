"""What must be in Pulsar before the first message is read: namespaces that hold messages, topics, dead letters.

A topic without subscription and retention loses its messages at once (H11); a time-to-live or an eviction would
take what was acknowledged; a backlog quota that raises exceptions makes producers drop what they hold (H1 c).
So the policies are set, and then read back: what the cluster really does decides, not what was asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bridge.contract import DEAD_LETTERS_TOPIC
from bridge.errors import TerminalError
from bridge.pulsar_admin import PulsarAdmin, rest_path
from bridge.settings.pulsar import PulsarSettings

__all__ = ["SessionMemory", "known_topics", "policy_problems", "provision", "verify_policies"]

_HOLD = "producer_request_hold"


def provision(admin: PulsarAdmin) -> None:
    """Create the namespaces and the dead letter topic, and check their policies.

    Raises TransientError when Pulsar cannot be reached, TerminalError with the remedy when a policy would lose
    messages, RefusedError when provisioning is not allowed.
    """
    admin.provision_namespaces()
    verify_policies(admin)
    settings = admin.settings
    admin.create_partitioned(settings.system_topic(DEAD_LETTERS_TOPIC), settings.command_partitions)


def verify_policies(admin: PulsarAdmin) -> None:
    """Read the policies of all namespaces. Raises TerminalError naming each that would lose messages."""
    problems: list[str] = []
    for name in admin.settings.all_namespaces:
        problems += policy_problems(name, admin.request("GET", f"/namespaces/{name}"))
    if problems:
        raise TerminalError(
            "; ".join(problems), remedy="run the named pulsar-admin commands, then start again"
        )


def policy_problems(namespace: str, policies: Mapping[str, Any]) -> list[str]:
    """Return what in a namespace's policies loses messages, each with the command that mends it. Pure."""
    problems: list[str] = []
    retention = policies.get("retention_policies") or {}
    if not retention.get("retentionTimeInMinutes") or not retention.get("retentionSizeInMB"):
        problems.append(
            f"{namespace} has no retention, so messages without a subscription vanish "
            f"(pulsar-admin namespaces set-retention {namespace} --time 3d --size -1)"
        )
    if policies.get("message_ttl_in_seconds"):
        problems.append(
            f"{namespace} has a message TTL of {policies['message_ttl_in_seconds']} s, which consumes what "
            f"subscriptions hold (pulsar-admin namespaces remove-message-ttl {namespace})"
        )
    for kind, quota in (policies.get("backlog_quota_map") or {}).items():
        if quota.get("policy") != _HOLD:
            problems.append(
                f"{namespace} has the backlog quota policy {quota.get('policy')} ({kind}), under which messages are "
                f"refused or evicted (pulsar-admin namespaces set-backlog-quota {namespace} --limit -1 --policy {_HOLD})"
            )
    return problems


def known_topics(admin: PulsarAdmin) -> list[str]:
    """Return the topics of the readings namespaces: local names, with ``tenant/namespace/`` before those of others."""
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
        text = (admin.request("GET", self._path, accept=(404,)) or {}).get(self._name)
        if text is None:
            return None
        return {str(name): int(qos) for name, qos in json.loads(text).items()}

    def store(self, admin: PulsarAdmin, granted: Mapping[str, int]) -> None:
        """Keep the filters."""
        admin.request("PUT", self._path, body={self._name: json.dumps(dict(granted), sort_keys=True)})
