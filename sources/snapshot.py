"""What the admin REST tells the planner: one snapshot of every partition, and what identifies cluster and topics.

All partitions are asked at once, on a few threads. What follows from a snapshot is decided in ``sources.planning``.
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
from bridge.pulsar_admin import PulsarAdmin, rest_path
from sources.chunks import ChunkPart, part_of
from sources.planning import Ledger, PartitionView
from sources.policies import Finding, most_held, of_namespace, of_topic
from sources.topics import TopicsPattern

__all__ = ["INCARNATION_PROPERTY", "Catalog", "view_of"]

INCARNATION_PROPERTY: Final = "pulsebridge.incarnation"
"""Property of a topic that is set once, when it is first read; it goes with the topic when that is deleted."""

_RECOVERY_ATTEMPTS: Final = 10
_RECOVERY_WAIT_S: Final = 0.05

_log = get_logger("source")


class Catalog:
    """The admin's view of the topics of one query. Raises TransientError when the admin cannot be reached."""

    def __init__(self, admin: PulsarAdmin, topics: Sequence[str], pattern: TopicsPattern | None = None) -> None:
        self.admin = admin
        self.topics = tuple(topics)
        """The topics named, or those that matched ``pattern`` when ``partitions`` was last asked."""
        self._pattern = pattern
        self._pool = ThreadPoolExecutor(max_workers=16, thread_name_prefix="pulsebridge-snapshot")
        self._counts: dict[str, int] = {}
        self._transactions = True
        """Whether the cluster may have transactions: until a broker says that it has none."""

    def close(self) -> None:
        """Stop the threads and close the connection."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self.admin.close()

    def cluster(self) -> str:
        """Return the name of the cluster."""
        return self.admin.cluster()

    def partitions(self) -> dict[str, str]:
        """Return every partition of the topics, with its topic. Raises RefusedError for a topic that is not there."""
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
        """Refuse to begin on a topic that does not exist. Raises RefusedError naming it."""
        if not partitions and self._pattern is not None:
            raise RefusedError(
                f"no topic in {self._pattern.folder} matches {self._pattern.expression!r}",
                remedy="correct topicsPattern, or set waitingForNonExistedTopic=true (streaming)",
            )
        missing = sorted({topic for name, topic in partitions.items() if name not in views})
        if missing:
            raise RefusedError(
                f"topic {', '.join(missing)} does not exist at {self.admin.settings.admin_url}",
                remedy="create it, start what writes to it, or correct the topic option",
            )

    def expiry(self, topics: Iterable[str]) -> list[Finding]:
        """Return what can consume the data that a subscription holds on these topics (H13).

        What this role may not ask counts as off.
        """
        topics = list(topics)
        namespaces = sorted({namespace_of(topic) for topic in topics})
        found = self._pool.map(self._expiry_of_namespace, namespaces)
        of_topics = self._pool.map(self._expiry_of_topic, topics)
        return [finding for of in (*found, *of_topics) for finding in of]

    def quotas(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the bytes of backlog that each partition of a topic may have, of the topics that have a limit."""
        topics = list(topics)
        found = dict(zip(topics, self._pool.map(self._quota_of, topics), strict=True))
        return {topic: limit for topic, limit in found.items() if limit is not None}

    def _quota_of(self, topic: str) -> int | None:
        path = rest_path(topic)
        (own,) = self._policies(f"/{path}", ("backlogQuotaMap",))
        (shared,) = self._policies("/namespaces/" + "/".join(path.split("/")[1:3]), ("backlogQuotaMap",))
        return most_held(shared, own)

    def _expiry_of_namespace(self, name: str) -> list[Finding]:
        parts = ("messageTTL", "backlogQuotaMap", "subscriptionExpirationTime")
        return of_namespace(name, *self._policies(f"/namespaces/{name}", parts))

    def _expiry_of_topic(self, topic: str) -> list[Finding]:
        return of_topic(topic, *self._policies(f"/{rest_path(topic)}", ("messageTTL", "backlogQuotaMap")))

    def _policies(self, path: str, parts: Sequence[str]) -> list[Any]:
        try:
            return [self.admin.request("GET", f"{path}/{part}", accept=(404,)) for part in parts]
        except RefusedError as e:  # policies of topics are switched off, or we may not read them
            _log.debug("policies are not read", path=path, why=e.what)
            return [None] * len(parts)

    def snapshot(self, partitions: Iterable[str]) -> dict[str, PartitionView]:
        """Return a view of each partition that exists, from one ``internalStats`` each, all asked at once."""
        names = list(partitions)
        views = self._pool.map(self._view, names)
        return {name: view for name, view in zip(names, views, strict=True) if view is not None}

    def rows_per_entry(self, places: Mapping[str, Position]) -> dict[str, float]:
        """Return how many messages an entry holds: on average since the broker loaded the partition, or, where
        nothing was written since, in the entry at the place given.
        """
        return dict(zip(places, self._pool.map(self._rows_per_entry, places, places.values()), strict=True))

    def published_ms(self, places: Mapping[str, Position]) -> dict[str, int | None]:
        """Return when the entry at each place was published, ms since the epoch; None where Pulsar does not tell."""
        return dict(zip(places, self._pool.map(self._published_ms, places, places.values()), strict=True))

    def chunk_parts(self, partition: str, places: Sequence[Position]) -> list[ChunkPart | None]:
        """Return what part of a chunked message each entry is, None for one that is none, or that nobody may see."""

        def ask(place: Position) -> ChunkPart | None:
            try:
                return part_of(self.admin.entry_headers(partition, place.ledger, place.entry)[1])
            except RefusedError:
                return None

        return list(self._pool.map(ask, places))

    def incarnations(self, topics: Iterable[str], *, mark: bool) -> dict[str, str]:
        """Return the mark of each topic's present life, setting it where there is none yet and ``mark`` is true.

        Where the role may not touch topic properties the mark stays empty: then a topic made anew is noticed by its
        ledgers alone, which is said once. A topic that is not there is left out.
        """
        names = list(topics)
        marks = self._pool.map(lambda topic: self._incarnation(topic, mark), names)
        return {name: found for name, found in zip(names, marks, strict=True) if found is not None}

    def position_at(self, partition: str, time_ms: int) -> Position | None:
        """Return the first entry published at ``time_ms`` or later, None when there is none yet."""
        answer = self.admin.request("GET", f"/{rest_path(partition)}/messageid/{time_ms}", accept=(404,))
        if answer is None or int(answer["ledgerId"]) < 0:
            return None
        return Position(int(answer["ledgerId"]), max(0, int(answer["entryId"])))

    def _view(self, partition: str) -> PartitionView | None:
        stats = self.admin.request("GET", f"/{rest_path(partition)}/internalStats", accept=(404,))
        if stats is None:
            return None
        view = view_of(partition, stats)
        return replace(view, readable=self._readable(partition)) if self._transactions else view

    def _readable(self, partition: str) -> Position | None:
        """Return the last entry before the first open transaction, None where there was never a transaction.

        Raises TransientError while the broker still recovers them, just after it loaded the topic.
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
                    "open transactions cannot be seen, a task that meets one is tried again; allow this role to ask",
                    error=str(e),
                )
                return None
            if stats is None or stats.get("state") == "NoSnapshot":
                return None
            if stats.get("state") == "Ready":
                return Position.parse(stats["maxReadPosition"])
            time.sleep(_RECOVERY_WAIT_S)
        raise TransientError(f"{partition}: the broker is still recovering its transactions")

    def _rows_per_entry(self, partition: str, place: Position) -> float:
        try:
            entries = int(self.admin.internal_stats(partition).get("entriesAddedCounter", 0))
            rows = int(self.admin.stats(partition).get("msgInCounter", 0))
        except RefusedError:
            return 1.0
        if not entries:
            entries, rows = 1, self._batch_at(partition, place)
        return max(1.0, rows / entries)

    def _published_ms(self, partition: str, place: Position) -> int | None:
        try:
            headers = self.admin.entry_headers(partition, place.ledger, place.entry)[1]
        except (TransientError, RefusedError):
            return None
        return _ms(headers.get("x-pulsar-publish-time", ""))

    def _batch_at(self, partition: str, place: Position) -> int:
        status, headers = self.admin.entry_headers(partition, place.ledger, place.entry)
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
                "a topic made anew is noticed by its ledgers only; allow topic properties to this role",
                topic=topic,
                error=str(e),
            )
            return ""
        return str(found.get(INCARNATION_PROPERTY, ""))


def _mark(stats: Mapping[str, Any]) -> str:
    # Two queries that see a topic first at the same time must write the same mark, so it is computed, not drawn:
    # ledger ids only grow in a cluster, and the time tells clusters apart that both begin at ledger 0.
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

    The list of ledgers counts 0 entries for the one that is open; the last confirmed entry tells how many of it can
    be read. Raises TransientError when the answer is not complete.
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
        holds = {name: Position.parse(of["markDeletePosition"]) for name, of in stats.get("cursors", {}).items()}
    except (KeyError, ValueError, TypeError) as e:
        raise TransientError(f"internalStats of {partition} cannot be read: {e}") from e
    return PartitionView(partition, tuple(ledgers), holds)
