"""Reads a snapshot of every partition, cluster name and topic marks from the admin REST.

A few threads request all partitions concurrently. ``sources.planning`` evaluates a snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from bridge.contract import Position, namespace_of, partition_name, partition_names
from bridge.errors import RefusedError, TransientError
from bridge.loggers import get_logger
from bridge.pulsar.admin import PulsarAdmin, position_at, rest_path
from sources.chunks import ChunkPart, part_of
from sources.planning import Ledger, PartitionView
from sources.policies import Finding, backlog_limit, of_namespace, of_topic
from sources.topics import TopicsPattern

__all__ = ["INCARNATION_PROPERTY", "Catalog", "view_of"]

INCARNATION_PROPERTY: Final = "pulsebridge.incarnation"
"""Property of a topic, set once when it is first read. Pulsar deletes it with the topic."""

_RECOVERY_ATTEMPTS: Final = 10
_RECOVERY_WAIT_S: Final = 0.05

_log = get_logger("source")


class Catalog:
    """The admin's view of the topics of one query. Raises TransientError if the admin is unreachable."""

    def __init__(self, admin: PulsarAdmin, topics: Sequence[str], pattern: TopicsPattern | None = None) -> None:
        self.admin = admin
        self.topics = tuple(topics)
        """The named topics, or those that matched ``pattern`` at the last call of ``partitions``."""
        self._pattern = pattern
        self._pool = ThreadPoolExecutor(max_workers=16, thread_name_prefix="pulsebridge-snapshot")
        self._counts: dict[str, int] = {}
        self._transactions = True
        """Whether the cluster may have transactions; False after a broker denies it."""

    def close(self) -> None:
        """Stop the threads and close the connection."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self.admin.close()

    def cluster(self) -> str:
        """Return the name of the cluster."""
        return self.admin.cluster()

    def partitions(self) -> dict[str, str]:
        """Return every partition of the topics, with its topic. Raises RefusedError for a topic that does not exist."""
        if self._pattern is not None:
            self.topics = self._pattern.matching(self.admin.topics(self._pattern.folder))
        found: dict[str, str] = {}
        for topic, count in zip(self.topics, self._pool.map(self.admin.partition_count, self.topics), strict=True):
            known = self._counts.get(topic)
            if known is not None and count > known:
                _log.info("new partitions found", topic=topic, before=known, now=count)
            self._counts[topic] = count
            found |= dict.fromkeys(partition_names(topic, count), topic)
        return found

    def refuse_missing(self, partitions: Mapping[str, str], views: Mapping[str, PartitionView]) -> None:
        """Refuse to begin on a topic that does not exist. Raises RefusedError with its name."""
        if not partitions and self._pattern is not None:
            raise RefusedError(
                f"no topic in {self._pattern.folder} matches {self._pattern.expression!r}",
                remedy="correct topicsPattern, or set waitingForNonExistedTopic=true (streaming)",
            )
        missing = sorted({topic for name, topic in partitions.items() if name not in views})
        if missing:
            raise RefusedError(
                f"topic {', '.join(missing)} does not exist at {self.admin.settings.admin_url}",
                remedy="create it, start the program that writes to it, or correct the topic option",
            )

    def expiry(self, topics: Iterable[str]) -> list[Finding]:
        """Return the policies that can delete unread data of a subscription on these topics (H13).

        A policy that this role may not read counts as off.
        """
        topics = list(topics)
        namespaces = sorted({namespace_of(topic) for topic in topics})
        found = self._pool.map(self._expiry_of_namespace, namespaces)
        of_topics = self._pool.map(self._expiry_of_topic, topics)
        return [finding for of in (*found, *of_topics) for finding in of]

    def quotas(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the allowed bytes of backlog per partition, for topics with a limit."""
        topics = list(topics)
        found = dict(zip(topics, self._pool.map(self._quota_of, topics), strict=True))
        return {topic: limit for topic, limit in found.items() if limit is not None}

    def _quota_of(self, topic: str) -> int | None:
        path = rest_path(topic)
        (own,) = self._policies(f"/{path}", ("backlogQuotaMap",))
        (shared,) = self._policies("/namespaces/" + "/".join(path.split("/")[1:3]), ("backlogQuotaMap",))
        return backlog_limit(shared, own)

    def _expiry_of_namespace(self, name: str) -> list[Finding]:
        parts = ("messageTTL", "backlogQuotaMap", "subscriptionExpirationTime")
        return of_namespace(name, *self._policies(f"/namespaces/{name}", parts))

    def _expiry_of_topic(self, topic: str) -> list[Finding]:
        return of_topic(topic, *self._policies(f"/{rest_path(topic)}", ("messageTTL", "backlogQuotaMap")))

    def _policies(self, path: str, parts: Sequence[str]) -> list[Any]:
        try:
            return [self.admin.request("GET", f"{path}/{part}", accept=(404,)) for part in parts]
        except RefusedError as e:  # topic policies are disabled, or this role may not read them
            _log.debug("policies are not read", path=path, why=e.what)
            return [None] * len(parts)

    def snapshot(self, partitions: Iterable[str]) -> dict[str, PartitionView]:
        """Return a view of each existing partition, from one ``internalStats`` each, requested concurrently."""
        names = list(partitions)
        views = self._pool.map(self._view, names)
        return {name: view for name, view in zip(names, views, strict=True) if view is not None}

    def rows_per_entry(self, positions: Mapping[str, Position]) -> dict[str, float]:
        """Return the messages per entry: the average since the broker loaded the partition.

        If nothing was written since, it is the number in the entry at the given position.
        """
        return dict(zip(positions, self._pool.map(self._rows_per_entry, positions, positions.values()), strict=True))

    def published_ms(self, positions: Mapping[str, Position]) -> dict[str, int | None]:
        """Return the publish times of entries, ms since the epoch. None if Pulsar does not give one."""
        return dict(zip(positions, self._pool.map(self._published_ms, positions, positions.values()), strict=True))

    def chunk_parts(self, partition: str, positions: Sequence[Position]) -> list[ChunkPart | None]:
        """Return the chunk part of each entry, None for other and for unreadable entries."""

        def ask(position: Position) -> ChunkPart | None:
            try:
                return part_of(self.admin.entry_headers(partition, position.ledger, position.entry)[1])
            except RefusedError:
                return None

        return list(self._pool.map(ask, positions))

    def incarnations(self, topics: Iterable[str], *, mark: bool) -> dict[str, str]:
        """Return the mark of each topic's current incarnation. A missing one is set if ``mark`` is true.

        If the role may not use topic properties, the mark stays empty, with a warning. Then only its ledgers show that
        a topic was re-created. A topic that does not exist is omitted.
        """
        names = list(topics)
        marks = self._pool.map(lambda topic: self._incarnation(topic, mark), names)
        return {name: found for name, found in zip(names, marks, strict=True) if found is not None}

    def position_at(self, partition: str, time_ms: int) -> Position | None:
        """Return the first entry published at ``time_ms`` or later, None if there is none yet."""
        return position_at(self.admin, partition, time_ms)

    def _view(self, partition: str) -> PartitionView | None:
        stats = self.admin.request("GET", f"/{rest_path(partition)}/internalStats", accept=(404,))
        if stats is None:
            return None
        view = view_of(partition, stats)
        return replace(view, readable=self._readable(partition)) if self._transactions else view

    def _readable(self, partition: str) -> Position | None:
        """Return the last entry before the first open transaction, None for a topic without transactions.

        Raises TransientError while the broker recovers them, just after it loaded the topic.
        """
        path = f"/../v3/transactions/transactionBufferStats/{rest_path(partition).removeprefix('persistent/')}"
        for _ in range(_RECOVERY_ATTEMPTS):
            try:
                stats = self.admin.request("GET", path, accept=(404,))
            except TransientError as e:
                if "transactionCoordinatorEnabled" not in e.what:
                    raise
                self._transactions = False  # of the whole cluster
                return None
            except RefusedError as e:
                self._transactions = False
                _log.warning(
                    "open transactions cannot be read; a task that meets one is retried. Action: allow this role to "
                    "read transaction buffer stats",
                    error=str(e),
                )
                return None
            if stats is None or stats.get("state") == "NoSnapshot":
                return None
            if stats.get("state") == "Ready":
                return Position.parse(stats["maxReadPosition"])
            time.sleep(_RECOVERY_WAIT_S)
        raise TransientError(f"{partition}: the broker is still recovering its transactions")

    def _rows_per_entry(self, partition: str, position: Position) -> float:
        try:
            entries = int(self.admin.internal_stats(partition).get("entriesAddedCounter", 0))
            rows = int(self.admin.stats(partition).get("msgInCounter", 0))
        except RefusedError:
            return 1.0
        if not entries:
            entries, rows = 1, self._batch_at(partition, position)
        return max(1.0, rows / entries)

    def _published_ms(self, partition: str, position: Position) -> int | None:
        try:
            headers = self.admin.entry_headers(partition, position.ledger, position.entry)[1]
        except (TransientError, RefusedError):
            return None
        return _ms(headers.get("x-pulsar-publish-time", ""))

    def _batch_at(self, partition: str, position: Position) -> int:
        status, headers = self.admin.entry_headers(partition, position.ledger, position.entry)
        return int(headers.get("x-pulsar-num-batch-message", 1)) if status == 200 else 1

    def _incarnation(self, topic: str, mark: bool) -> str | None:
        path = f"/{rest_path(topic)}/properties"
        try:
            found = self.admin.request("GET", path, accept=(404,))
            if found is None and not self.admin.exists(topic):
                return None
            found = found or {}
            if INCARNATION_PROPERTY in found or not mark:
                return str(found.get(INCARNATION_PROPERTY, ""))
            first = partition_name(topic, 0) if self._counts.get(topic) else topic
            self.admin.request("PUT", path, body={INCARNATION_PROPERTY: _mark(self.admin.internal_stats(first))})
            found = self.admin.request("GET", path) or {}
        except RefusedError as e:
            _log.warning(
                "only its ledgers show that a topic was re-created. Action: allow topic properties to this role",
                topic=topic,
                error=str(e),
            )
            return ""
        return str(found.get(INCARNATION_PROPERTY, ""))


def _mark(stats: Mapping[str, Any]) -> str:
    # Two queries that first read a topic at the same time must write the same mark, so it is computed, not random:
    # ledger ids only grow in a cluster, and the time distinguishes clusters that both begin at ledger 0.
    ledgers = stats.get("ledgers") or [{"ledgerId": -1}]
    created = _ms(str(stats.get("lastLedgerCreatedTimestamp", ""))) or 0
    return f"{ledgers[0]['ledgerId']}-{created}"


def _ms(text: str) -> int | None:
    try:
        return int(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)
    except ValueError:
        return None


def view_of(partition: str, stats: Mapping[str, Any]) -> PartitionView:
    """Return the view that one ``internalStats`` gives.

    The list of ledgers counts 0 entries for the open one; the last confirmed entry gives its readable entries. Raises
    TransientError if the answer is incomplete.
    """
    try:
        confirmed = Position.parse(stats["lastConfirmedEntry"])
        listed = [(int(of["ledgerId"]), int(of["entries"]), int(of["size"])) for of in stats["ledgers"]]
        ledgers = []
        for index, (number, entries, size) in enumerate(listed):
            if index == len(listed) - 1 and entries == 0:
                entries = confirmed.entry + 1 if number == confirmed.ledger else 0
                size = int(stats.get("currentLedgerSize", 0)) if entries else 0
            ledgers.append(Ledger(number, entries, size))
        mark_deletes = {name: Position.parse(of["markDeletePosition"]) for name, of in stats.get("cursors", {}).items()}
    except (KeyError, ValueError, TypeError) as e:
        raise TransientError(f"internalStats of {partition} cannot be read: {e}") from e
    return PartitionView(partition, tuple(ledgers), mark_deletes)
