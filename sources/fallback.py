"""Goes on without Pulsar's admin, where the binary protocol can tell what is needed, and says once what is off.

A trigger then has no new partitions and topics, no sizes of new ledgers, and no look at subscriptions; an entry that
does not come cannot be classified, so its task fails for another try, as always. A first start needs the admin: only
it tells whether a subscription belongs to another checkpoint (H12).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from bridge.contract import Position, partition_names
from bridge.errors import TransientError, UnreachableError
from bridge.loggers import get_logger
from bridge.pulsar_admin import PulsarAdmin
from bridge.pulsar_dial import dial
from sources.binary import BinaryTopics
from sources.options import SourceOptions
from sources.planning import PartitionView
from sources.policies import Finding
from sources.snapshot import Catalog

__all__ = ["FallbackCatalog"]

T = TypeVar("T")

_log = get_logger("source")
_ASK_AGAIN_S: Final = 3.0
_DIAL_S: Final = 3.0
_OFF: Final = (
    "new partitions and topics; sizes, so limits by bytes are rough; rows per entry; seconds behind; the looks whether "
    "the subscription follows and fills a quota; whether topic and cluster are those of the checkpoint; a task that misses an entry "
    "waits for the admin"
)


class FallbackCatalog(Catalog):
    """The topics of one query, by the admin as long as it answers."""

    def __init__(self, options: SourceOptions, topics: BinaryTopics) -> None:
        super().__init__(PulsarAdmin(options.pulsar), options.topics, options.pattern)
        self._options = options
        self._binary = topics
        self._known: dict[str, PartitionView] = {}
        self._topics: dict[str, str] = {}
        self._probe: Future[str] | None = None
        self._asked_at = 0.0
        self.off = False
        """Whether the admin is away and the binary protocol stands in for it."""

    def cluster(self) -> str:
        """Return the name of the cluster, empty where nobody tells."""
        return self._ask(super().cluster, lambda: "")

    def partitions(self) -> dict[str, str]:
        """Return every partition of the topics, with its topic; those known before while the admin is away."""
        self._topics = self._ask(super().partitions, self._partitions_known)
        return self._topics

    def snapshot(self, partitions: Iterable[str]) -> dict[str, PartitionView]:
        """Return a view of each partition; a mapping to places tells where a view has to begin at the latest."""
        by_admin = super().snapshot
        found = self._ask(lambda: by_admin(partitions), lambda: self._snapshot_known(partitions))
        self._known.update(found)
        return found

    def incarnations(self, topics: Iterable[str], *, mark: bool) -> dict[str, str]:
        """Return the marks of topics, none while the admin is away: then nothing is compared."""
        by_admin = super().incarnations
        return self._ask(lambda: by_admin(topics, mark=mark), dict)

    def expiry(self, topics: Iterable[str]) -> list[Finding]:
        """Return what can consume held data, as far as somebody tells."""
        by_admin = super().expiry
        return self._ask(lambda: by_admin(topics), list)

    def quotas(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the limits of backlogs, none while the admin is away."""
        by_admin = super().quotas
        return self._ask(lambda: by_admin(topics), dict)

    def rows_per_entry(self, places: Mapping[str, Position]) -> dict[str, float]:
        """Return the messages of an entry, of no partition while the admin is away."""
        by_admin = super().rows_per_entry
        return self._ask(lambda: by_admin(places), dict)

    def published_ms(self, places: Mapping[str, Position]) -> dict[str, int | None]:
        """Return publish times, none while the admin is away."""
        return {} if self.off else super().published_ms(places)

    def position_at(self, partition: str, time_ms: int) -> Position | None:
        """Return the first entry published at ``time_ms`` or later, None when there is none yet."""
        by_admin = super().position_at
        return self._ask(lambda: by_admin(partition, time_ms), lambda: self._binary.position_at(partition, time_ms))

    def _ask(self, by_admin: Callable[[], T], otherwise: Callable[[], T]) -> T:
        if self.off and not self._is_back():
            return otherwise()
        try:
            return by_admin()
        except UnreachableError as e:
            try:
                dial(self._options.pulsar, _DIAL_S)
            except TransientError:
                raise e from None  # the broker is away as well
            found = otherwise()
            self.off = True
            self._asked_at = time.monotonic()
            _log.warning(
                "Pulsar's admin cannot be reached, the query goes on by the binary protocol: check admin.url",
                why=e.what,
                off=_OFF,
            )
            return found

    def _is_back(self) -> bool:
        """Ask for the admin now and then, without waiting for its answer."""
        if self._probe is not None and self._probe.done():
            self.off = self._probe.exception() is not None
            self._probe = None
            if not self.off:
                _log.info("Pulsar's admin is back, nothing is off any more")
        elif self._probe is None and time.monotonic() - self._asked_at >= _ASK_AGAIN_S:
            self._asked_at = time.monotonic()
            self._probe = self._pool.submit(self.admin.cluster)
        return not self.off

    def _partitions_known(self) -> dict[str, str]:
        if self._topics:
            return self._topics
        if self._options.pattern is not None:
            raise TransientError("only Pulsar's admin lists topics, and it cannot be reached")
        found: dict[str, str] = {}
        for topic in self.topics:
            count = self._binary.partition_count(topic)
            found |= dict.fromkeys(partition_names(topic, count), topic)
        return found

    def _snapshot_known(self, partitions: Iterable[str]) -> dict[str, PartitionView]:
        names = list(partitions)
        places: Mapping[str, Any] = partitions if isinstance(partitions, Mapping) else {}

        def view(name: str) -> PartitionView:
            place = places.get(name)
            begin = place if isinstance(place, Position) else None
            return self._binary.view(name, self._known.get(name), begin)

        return dict(zip(names, self._pool.map(view, names), strict=True))
