"""Which rows of quarantine a command means: by rule, topic, device and age.

It is plain data, so that a replay that was cut is finished with the selection that it began with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from bridge.contract import base_topic
from bridge.errors import ConfigError
from streaming.readings import topic_pattern

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["Selection"]


@dataclass(frozen=True)
class Selection:
    """What is empty restricts nothing."""

    rules: tuple[str, ...] = ()
    """Rows that failed one of these."""
    topic: str = ""
    """A Pulsar topic (its full or its local name), or an MQTT filter that the publish's topic matches."""
    device: str = ""
    since_us: int = 0
    """Judged at this time or later, in µs since the epoch."""

    @classmethod
    def from_recipe(cls, body: Mapping[str, Any]) -> Selection:
        """Read what ``as_recipe`` gave."""
        return cls(**{**body, "rules": tuple(body["rules"])})

    def as_recipe(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**asdict(self), "rules": list(self.rules)}

    @property
    def topic_patterns(self) -> tuple[str, str | None]:
        """Return the regular expressions of the Pulsar topics and of the MQTT topics that ``topic`` means.

        No MQTT topic, None, where it cannot be a filter: then it is the name of a Pulsar topic.
        """
        name = base_topic(self.topic)
        literal = "".join(c if c.isalnum() else f"\\x{{{ord(c):x}}}" for c in name)
        try:
            pattern = topic_pattern(self.topic)
        except ConfigError:
            pattern = None
        return rf"^(.*/)?{literal}(-partition-\d+)?$", pattern

    def column(self) -> Column:
        """Return the condition on rows of quarantine."""
        from pyspark.sql import functions as F

        meant = F.lit(True)
        if self.rules:
            meant &= F.arrays_overlap("failed_rules", F.array(*map(F.lit, self.rules)))
        if self.device:
            meant &= F.col("device") == self.device
        if self.since_us:
            meant &= F.col("processed_at") >= F.timestamp_micros(F.lit(self.since_us))
        if self.topic:
            pulsar, mqtt = self.topic_patterns
            of_topic = F.col("__topic").rlike(pulsar)
            meant &= of_topic if mqtt is None else of_topic | F.col("mqtt_topic").rlike(mqtt)
        return F.coalesce(meant, F.lit(False))
