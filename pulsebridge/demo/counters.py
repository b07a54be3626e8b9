"""What the run counts while it goes on, from the outside of every part. For the eyes only: the audit counts anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from bridge.contract import COMMANDS_TOPIC, RECEIPTS_TOPIC
from bridge.errors import RefusedError, TransientError
from bridge.pulsar_admin import PulsarAdmin, rest_path
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.demo.delta_log import LogTail
from pulsebridge.demo.fleet import read_status

__all__ = ["Counters", "Counts"]


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of one moment."""

    published: int = 0
    acknowledged: int = 0
    pulsar: int = 0
    bronze: int = 0
    silver: int = 0
    quarantine: int = 0
    emitted: int = 0
    receipts: int = 0
    received: int = 0
    sent_all: bool = False

    def output_of(self, target: str) -> int:
        """Return the count that moves when the killed part works again."""
        return {"ingest": self.pulsar, "pulsar": self.pulsar, "push": self.receipts, "spark": self.bronze}[
            target
        ]

    def as_dict(self) -> dict[str, int]:
        """Return the counts by name."""
        return {f.name: int(getattr(self, f.name)) for f in fields(self)}


class Counters:
    """Reads the counts; a part that cannot be asked just now keeps its last one."""

    def __init__(
        self, pulsar: PulsarSettings, topics: list[str], devices: Path, tables: Mapping[str, Path]
    ) -> None:
        self._admin = PulsarAdmin(pulsar, timeout_s=2.0)
        self._devices = devices
        self._tails = {name: LogTail(path) for name, path in tables.items()}
        self._topics = {topic: _Growing() for topic in topics}
        self._readings = topics
        self._commands = pulsar.system_topic(COMMANDS_TOPIC)
        self._receipts = pulsar.system_topic(RECEIPTS_TOPIC)
        self._topics |= {self._commands: _Growing(), self._receipts: _Growing()}

    def close(self) -> None:
        """Close the connection to Pulsar's admin."""
        self._admin.close()

    @property
    def first_row_us(self) -> int:
        """When the first row was in bronze, µs since the epoch; 0 before that."""
        return self._tails["bronze"].first_us

    def read(self) -> Counts:
        """Return the counts of now."""
        fleet = read_status(self._devices)
        for topic, growing in self._topics.items():
            growing.seen(self._stored(topic))
        rows = {name: tail.advance() for name, tail in self._tails.items()}
        return Counts(
            published=fleet.published,
            acknowledged=fleet.acknowledged,
            pulsar=sum(self._topics[t].total for t in self._readings),
            bronze=rows["bronze"],
            silver=rows["silver"],
            quarantine=rows["quarantine"],
            emitted=self._topics[self._commands].total,
            receipts=self._topics[self._receipts].total,
            received=fleet.distinct_commands,
            sent_all=fleet.sent_all,
        )

    def _stored(self, topic: str) -> int | None:
        try:
            stats = self._admin.request(
                "GET", f"/{rest_path(topic)}/partitioned-stats?perPartition=false", accept=(404,)
            )
        except (TransientError, RefusedError):
            return None
        return None if stats is None else int(stats.get("msgInCounter", 0))


class _Growing:
    """A counter that starts again at 0 when its server does, added up."""

    def __init__(self) -> None:
        self.total = 0
        self._last = 0

    def seen(self, value: int | None) -> None:
        if value is None:
            return
        self.total += value - self._last if value >= self._last else value
        self._last = value
