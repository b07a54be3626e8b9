"""Continues a query by the binary protocol while Pulsar's admin is unreachable.

A warning names the disabled functions: new partitions and topics, sizes of new ledgers, checks of the subscription. A
missing entry cannot be classified, so its task fails and Spark retries it. A first start needs the admin: only the
admin reports whether a subscription belongs to another checkpoint (H12).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from bridge.contract import Position, partition_names
from bridge.errors import TransientError, UnreachableError
from bridge.loggers import get_logger
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.dial import dial
from sources.binary import BinaryTopics
from sources.options import SourceOptions
from sources.planning import PartitionView
from sources.policies import Finding
from sources.snapshot import Catalog

__all__ = ["FallbackCatalog"]

T = TypeVar("T")

_log = get_logger("source")
_PROBE_S: Final = 3.0
_DIAL_S: Final = 3.0
_DISABLED: Final = (
    "new partitions and topics; sizes, so limits by bytes are rough; rows per entry; seconds behind; checks whether "
    "the subscription follows and fills a quota; checks of topic and cluster against the checkpoint; a task that "
    "misses an entry waits for the admin"
)


class FallbackCatalog(Catalog):
    """The topics of one query, by the admin while it is reachable."""

    def __init__(self, options: SourceOptions, topics: BinaryTopics) -> None:
        super().__init__(PulsarAdmin(options.pulsar), options.topics, options.pattern)
        self._options = options
        self._binary = topics
        self._known: dict[str, PartitionView] = {}
        self._topics: dict[str, str] = {}
        self._probe: Future[str] | None = None
        self._probed_at = 0.0
        self.without_admin = False
        """Whether the admin is unreachable and the binary protocol is in use."""

    def cluster(self) -> str:
        """Return the name of the cluster, empty without the admin."""
        return self._ask(super().cluster, lambda: "")

    def partitions(self) -> dict[str, str]:
        """Return every partition of the topics, with its topic; without the admin, the known ones."""
        self._topics = self._ask(super().partitions, self._partitions_known)
        return self._topics

    def snapshot(self, partitions: Iterable[str]) -> dict[str, PartitionView]:
        """Return a view of each partition. A mapping to positions gives the latest begin of a view."""
        by_admin = super().snapshot
        found = self._ask(lambda: by_admin(partitions), lambda: self._snapshot_known(partitions))
        self._known.update(found)
        return found

    def incarnations(self, topics: Iterable[str], *, mark: bool) -> dict[str, str]:
        """Return the marks of topics; none without the admin, so that nothing is compared."""
        by_admin = super().incarnations
        return self._ask(lambda: by_admin(topics, mark=mark), dict)

    def expiry(self, topics: Iterable[str]) -> list[Finding]:
        """Return the policies that can delete unread data; none without the admin."""
        by_admin = super().expiry
        return self._ask(lambda: by_admin(topics), list)

    def quotas(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the limits of backlogs, none without the admin."""
        by_admin = super().quotas
        return self._ask(lambda: by_admin(topics), dict)

    def rows_per_entry(self, positions: Mapping[str, Position]) -> dict[str, float]:
        """Return the messages per entry, of no partition without the admin."""
        by_admin = super().rows_per_entry
        return self._ask(lambda: by_admin(positions), dict)

    def published_ms(self, positions: Mapping[str, Position]) -> dict[str, int | None]:
        """Return publish times, none without the admin."""
        return {} if self.without_admin else super().published_ms(positions)

    def position_at(self, partition: str, time_ms: int) -> Position | None:
        """Return the first entry published at ``time_ms`` or later, None if there is none yet."""
        by_admin = super().position_at
        return self._ask(lambda: by_admin(partition, time_ms), lambda: self._binary.position_at(partition, time_ms))

    def _ask(self, by_admin: Callable[[], T], otherwise: Callable[[], T]) -> T:
        if self.without_admin and not self._is_reachable():
            return otherwise()
        try:
            return by_admin()
        except UnreachableError as e:
            try:
                dial(self._options.pulsar, _DIAL_S)
            except TransientError:
                raise e from None  # the broker is unreachable as well
            found = otherwise()
            self.without_admin = True
            self._probed_at = time.monotonic()
            _log.warning(
                "Pulsar's admin is unreachable, the query continues by the binary protocol. Action: check admin.url",
                why=e.what,
                disabled=_DISABLED,
            )
            return found

    def _is_reachable(self) -> bool:
        """Probe the admin every few seconds, without waiting for its answer."""
        if self._probe is not None and self._probe.done():
            self.without_admin = self._probe.exception() is not None
            self._probe = None
            if not self.without_admin:
                _log.info("Pulsar's admin is reachable, nothing is disabled")
        elif self._probe is None and time.monotonic() - self._probed_at >= _PROBE_S:
            self._probed_at = time.monotonic()
            self._probe = self._pool.submit(self.admin.cluster)
        return not self.without_admin

    def _partitions_known(self) -> dict[str, str]:
        if self._topics:
            return self._topics
        if self._options.pattern is not None:
            raise TransientError("only Pulsar's admin lists topics, and it is unreachable")
        found: dict[str, str] = {}
        for topic in self.topics:
            count = self._binary.partition_count(topic)
            found |= dict.fromkeys(partition_names(topic, count), topic)
        return found

    def _snapshot_known(self, partitions: Iterable[str]) -> dict[str, PartitionView]:
        names = list(partitions)
        positions: Mapping[str, Any] = partitions if isinstance(partitions, Mapping) else {}

        def view(name: str) -> PartitionView:
            position = positions.get(name)
            begin = position if isinstance(position, Position) else None
            return self._binary.view(name, self._known.get(name), begin)

        return dict(zip(names, self._pool.map(view, names), strict=True))
