"""Prepares Pulsar: namespaces with policies and dead letters before the first message, topics at their first message.

A topic without subscription and retention loses its messages at once (H11). A time-to-live or an eviction removes
acknowledged messages. A backlog quota that raises exceptions makes producers drop their pending messages (H1 c).
So the bridge sets the policies and reads the result, because only the policies in force count.

At the start a policy that loses messages is an error. While ingest runs, each finding is one WARNING with the command
that fixes it, because a stop would lose as much. Ingest re-creates a deleted topic. Its producers wait, because its
namespace creates no topic by itself. If a namespace does (``pulsar.auto_topics: leave``), producers continue in
partitions that belong to no topic. Pulsar then refuses to create the topic (H4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import structlog

from bridge.contract import DEAD_LETTERS_TOPIC, INSTANCES_TOPIC, partition_name
from bridge.errors import PulsebridgeError, RefusedError, TerminalError
from bridge.pulsar.admin import PulsarAdmin, rest_path
from bridge.pulsar.dial import dial
from bridge.pulsar.provisioning import create_topic, log_unchecked, try_rights, verify
from bridge.pulsar.provisioning_plan import QUOTA_POLICY, ingest_needs, policies_lack, topic_need

__all__ = [
    "PolicyWatch",
    "half_used",
    "known_topics",
    "provision",
    "quota_of",
    "topic_problems",
    "verify_policies",
    "verify_topics",
]

log = structlog.get_logger("provisioning")
watch_log = structlog.get_logger("ingest")

_AT_ONCE: Final = 50


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
    problems = _namespace_problems(admin)
    if problems:
        raise TerminalError("; ".join(problems), remedy="run the named pulsar-admin commands, then restart")


def _namespace_problems(admin: PulsarAdmin) -> list[str]:
    return [
        f"{name}: {s.why} ({s.shell})"
        for name in admin.settings.all_namespaces
        for s in policies_lack(name, admin.request("GET", f"/namespaces/{name}"), admin.settings)
    ]


def known_topics(admin: PulsarAdmin) -> list[str]:
    """Return the full names of the existing readings topics; none if ``pulsar.provision`` is off."""
    if admin.settings.provision == "off":
        return []
    return [topic for namespace in admin.settings.readings_namespaces for topic in admin.topics(namespace)]


def quota_of(stats: dict[str, Any]) -> tuple[int, int]:
    """Return a partition's backlog and its quota, in bytes. A quota of 0 or less means no quota."""
    return int(stats.get("backlogSize", 0)), int(stats.get("backlogQuotaLimitSize", -1))


def topic_problems(topic: str, ttl: Any, retention: Any, quotas: Any) -> list[str]:
    """Return the topic's own policies that lose messages, each with the command that fixes it.

    The three are the answers of Pulsar's admin for the topic alone: None or empty if its namespace decides (H13).
    """
    problems = []
    if ttl:
        problems.append(
            f"{topic} has its own message TTL of {ttl} s, which removes messages that subscriptions still need "
            f"(pulsar-admin topicPolicies remove-message-ttl {topic})"
        )
    if retention and not (retention.get("retentionTimeInMinutes") and retention.get("retentionSizeInMB")):
        problems.append(
            f"{topic} has its own retention, which keeps nothing (pulsar-admin topicPolicies remove-retention {topic})"
        )
    for kind, quota in (quotas or {}).items():
        if quota.get("policy") != QUOTA_POLICY:
            problems.append(
                f"{topic} has its own backlog quota policy {quota.get('policy')} ({kind}), which refuses or evicts "
                f"messages (pulsar-admin topicPolicies remove-backlog-quota {topic} --type {kind})"
            )
    return problems


def _problems_of(admin: PulsarAdmin, topic: str) -> list[str]:
    path = f"/{rest_path(topic)}"
    try:
        return topic_problems(
            topic,
            admin.request("GET", f"{path}/messageTTL", accept=(404,)),
            admin.request("GET", f"{path}/retention", accept=(404,)),
            admin.request("GET", f"{path}/backlogQuotaMap", accept=(404,)),
        )
    except RefusedError as e:  # topic policies are disabled, or the bridge may not read them
        watch_log.debug("the policies of a topic could not be read", topic=topic, why=e.what)
        return []


def verify_topics(admin: PulsarAdmin) -> None:
    """Check the policies of each existing readings topic. Raises TerminalError with those that lose messages."""
    topics = known_topics(admin)
    with ThreadPoolExecutor(8, thread_name_prefix="topic-policies") as pool:
        problems = [p for found in pool.map(lambda t: _problems_of(admin, t), topics) for p in found]
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise TerminalError("; ".join(problems[:5]) + more, remedy="run the named pulsar-admin commands, then restart")


class PolicyWatch:
    """Checks policies and topics. Its thread calls ``topics`` for the topics written to and their partitions."""

    def __init__(self, admin: PulsarAdmin, topics: Callable[[], Mapping[str, int]]) -> None:
        self._admin = admin
        self._topics = topics
        self._reported: set[str] = set()
        self._next = 0

    def look(self) -> list[str]:
        """Check once, re-create deleted topics, and log new findings. Returns all findings."""
        found: list[str] = []
        for part in (_namespace_problems, self._of_topics):
            try:
                found += part(self._admin)
            except PulsebridgeError as e:  # Pulsar is unreachable, which other parts log
                watch_log.debug("policies could not be read", why=str(e))
        for line in found:
            if line not in self._reported:
                watch_log.warning(f"Pulsar loses or will refuse messages: {line}. Action: apply this remedy")
        self._reported = set(found)
        return found

    def _deleted(self, topic: str, partitions: int) -> list[str]:
        if partitions < 1 or self._admin.partition_count(topic):
            return []
        line = f"{topic} was deleted with its subscriptions and their messages"
        if self._admin.settings.provision == "create" and self._admin.make(topic, partitions):
            return [f"{line}; ingest re-created it: make its readers resubscribe"]
        paths = [f"/{rest_path(partition_name(topic, n))}/stats" for n in range(partitions)]
        if all(self._admin.request("GET", path, accept=(404,)) is None for path in paths):
            return [
                f"{line}; new messages wait, unacknowledged, until it exists (pulsar-admin topics "
                f"create-partitioned-topic {topic} --partitions {partitions})"
            ]
        return [
            f"{line}; new messages are in partitions that belong to no topic, so its readers do not get them: "
            f"read {partition_name(topic, 0)} and so on, delete them, and restart ingest"
        ]

    def _of_topics(self, admin: PulsarAdmin) -> list[str]:
        """Check some of the topics; the next call checks others."""
        topics = dict(self._topics())
        names = sorted(topics)
        if not names:
            return []
        begin = self._next % len(names)
        some = (names + names)[begin : begin + min(_AT_ONCE, len(names))]
        self._next = begin + len(some)
        found = []
        for topic in some:
            try:
                found += self._deleted(topic, topics[topic])
                found += _problems_of(admin, topic)
                partitions = [partition_name(topic, n) for n in range(topics[topic])] or [topic]
                found += [line for name in partitions if (line := half_used(name, admin.stats(name)))]
            except RefusedError as e:  # deleted, which ``_deleted`` reports, or not allowed
                watch_log.debug("a topic could not be checked", topic=topic, why=e.what)
        return found


def half_used(partition: str, stats: Mapping[str, Any]) -> str:
    """Return a warning if a backlog uses at least half of its quota, else ``""``."""
    used, limit = quota_of(dict(stats))
    if limit <= 0 or used * 2 < limit:
        return ""
    backlogs = {n: int(s.get("msgBacklog", 0)) for n, s in (stats.get("subscriptions") or {}).items()}
    slowest = max(backlogs, key=lambda n: backlogs[n], default="")
    share = "all" if used >= limit else "half"
    # Without numbers that change between checks, so that the same finding is logged once.
    return (
        f"the backlog of {partition} uses {share} of its quota of {limit} bytes: let its subscriptions consume"
        + (f" ({slowest} has the largest backlog)" if slowest else "")
        + ", or raise it (pulsar-admin namespaces set-backlog-quota)"
    )
