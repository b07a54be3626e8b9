"""Looks whether somebody changed what holds messages: policies of namespaces and topics, quotas, the topics themselves.

At the start what would lose messages is an error (``topic_problems``); while ingest runs it is a WARNING with the
command that mends it, once for each finding, for a stop would lose nothing less. A topic that was deleted is made
anew: its producers wait, since its namespace makes no topic by itself. Where one does (``pulsar.auto_topics: leave``),
producers go on in partitions that belong to no topic, and Pulsar then refuses to make the topic (H4).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import structlog

from bridge.contract import partition_name
from bridge.errors import PulsebridgeError, RefusedError, TerminalError
from bridge.ingest.blocking import quota_of
from bridge.ingest.provisioning import verify_policies
from bridge.pulsar_admin import PulsarAdmin, rest_path

__all__ = ["PolicyWatch", "half_used", "topic_problems", "verify_topics", "watching_policies"]

log = structlog.get_logger("ingest")

_EVERY_S: Final = 60.0
_AT_ONCE: Final = 50
_HOLD: Final = "producer_request_hold"


def topic_problems(topic: str, ttl: Any, retention: Any, quotas: Any) -> list[str]:
    """Return what in a topic's own policies loses messages, each with the command that mends it. Pure.

    The three are what Pulsar's admin answers for the topic alone: None or empty where its namespace decides (H13).
    """
    problems = []
    if ttl:
        problems.append(
            f"{topic} has a message TTL of {ttl} s of its own, which consumes what subscriptions hold "
            f"(pulsar-admin topicPolicies remove-message-ttl {topic})"
        )
    if retention and not (retention.get("retentionTimeInMinutes") and retention.get("retentionSizeInMB")):
        problems.append(
            f"{topic} has a retention of its own that keeps nothing "
            f"(pulsar-admin topicPolicies remove-retention {topic})"
        )
    for kind, quota in (quotas or {}).items():
        if quota.get("policy") != _HOLD:
            problems.append(
                f"{topic} has the backlog quota policy {quota.get('policy')} of its own ({kind}), under which messages "
                f"are refused or evicted (pulsar-admin topicPolicies remove-backlog-quota {topic} --type {kind})"
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
    except RefusedError as e:  # policies of topics are switched off, or we may not read them
        log.debug("the policies of a topic are not read", topic=topic, why=e.what)
        return []


def verify_topics(admin: PulsarAdmin) -> None:
    """Read the policies of each topic of readings that exists. Raises TerminalError naming what would lose messages."""
    topics = [topic for namespace in admin.settings.readings_namespaces for topic in admin.topics(namespace)]
    with ThreadPoolExecutor(8, thread_name_prefix="topic-policies") as pool:
        problems = [p for found in pool.map(lambda t: _problems_of(admin, t), topics) for p in found]
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise TerminalError(
            "; ".join(problems[:5]) + more, remedy="run the named pulsar-admin commands, then start again"
        )


class PolicyWatch:
    """``topics`` gives the topics that are written to and their numbers of partitions; it is called in the watch's thread."""

    def __init__(self, admin: PulsarAdmin, topics: Callable[[], Mapping[str, int]]) -> None:
        self._admin = admin
        self._topics = topics
        self._told: set[str] = set()
        self._next = 0

    def look(self) -> list[str]:
        """Look once, make deleted topics anew, and say what is new. Returns all that was found."""
        found: list[str] = []
        topics = dict(self._topics())
        for part in (self._of_namespaces, self._of_topics):
            try:
                found += part(topics)
            except TerminalError as e:
                found.append(e.what)
            except PulsebridgeError as e:  # Pulsar is away, which others say
                log.debug("policies could not be read", why=str(e))
        for line in found:
            if line not in self._told:
                log.warning(f"Pulsar would lose or soon refuse messages; see what mends it: {line}")
        self._told = set(found)
        return found

    def _of_namespaces(self, _topics: dict[str, int]) -> list[str]:
        verify_policies(self._admin)
        return []

    def _deleted(self, topic: str, partitions: int) -> list[str]:
        if partitions < 1 or self._admin.partition_count(topic):
            return []
        line = f"{topic} was deleted, and with it the subscriptions that held its messages"
        if self._admin.settings.provision == "create" and self._admin.make(topic, partitions):
            return [f"{line}; it is made anew: let its readers subscribe again"]
        if not any(self._is_there(partition_name(topic, n)) for n in range(partitions)):
            return [
                f"{line}; its messages wait, unacknowledged, until it is there again (pulsar-admin topics "
                f"create-partitioned-topic {topic} --partitions {partitions})"
            ]
        return [
            f"{line}; what is written since is in partitions of it that belong to no topic, where its readers do not "
            f"look: read {partition_name(topic, 0)} and so on, delete them, and start ingest again"
        ]

    def _is_there(self, partition: str) -> bool:
        return self._admin.request("GET", f"/{rest_path(partition)}/stats", accept=(404,)) is not None

    def _of_topics(self, topics: dict[str, int]) -> list[str]:
        """Look at some of the topics, others the next time."""
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
                found += _problems_of(self._admin, topic)
                found += self._half_used(topic, topics[topic])
            except RefusedError as e:  # deleted, which is told elsewhere, or not allowed
                log.debug("a topic could not be looked at", topic=topic, why=e.what)
        return found

    def _half_used(self, topic: str, partitions: int) -> list[str]:
        names = [partition_name(topic, n) for n in range(partitions)] if partitions > 0 else [topic]
        return [line for name in names if (line := half_used(name, self._admin.stats(name)))]


def half_used(partition: str, stats: Mapping[str, Any]) -> str:
    """Return the alarm when a partition's backlog uses half of its quota or more, else nothing. Pure."""
    used, limit = quota_of(dict(stats))
    if limit <= 0 or used * 2 < limit:
        return ""
    backlogs = {n: int(s.get("msgBacklog", 0)) for n, s in (stats.get("subscriptions") or {}).items()}
    slowest = max(backlogs, key=lambda n: backlogs[n], default="")
    share = "all" if used >= limit else "half"
    # No numbers that change from one look to the next: the same finding is told once.
    return (
        f"the backlog of {partition} uses {share} of its quota of {limit} bytes: let its subscriptions read on"
        + (f" ({slowest} is furthest behind)" if slowest else "")
        + ", or raise it (pulsar-admin namespaces set-backlog-quota)"
    )


@contextmanager
def watching_policies(
    admin: PulsarAdmin, topics: Callable[[], Mapping[str, int]], *, every_s: float = _EVERY_S
) -> Iterator[PolicyWatch]:
    """Look every ``every_s`` seconds, in a thread of its own, until the block ends."""
    watch = PolicyWatch(admin, topics)
    ending = threading.Event()

    def run() -> None:
        while not ending.wait(every_s):
            watch.look()

    thread = threading.Thread(target=run, name="policy-watch", daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        ending.set()
        thread.join(15)
