"""What ``pulsebridge quarantine`` counts and prints. The numbers come from Spark; how they read is decided here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from bridge.contract import base_topic
from bridge.dead_letters.showing import body_of, iso
from bridge.display import text_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from streaming.quarantine.replay import Outcome
    from streaming.quarantine.selection import Selection

__all__ = ["Example", "Summary", "count_held", "outcome_json", "outcome_text"]

_SHOWN_BYTES: Final = 160
_LINES: Final = 20


@dataclass(frozen=True)
class Example:
    """One row that is held. ``at_us``: when it was judged, in µs since the epoch."""

    at_us: int
    device: str | None
    mqtt_topic: str | None
    rules: tuple[str, ...]
    reason: str
    payload: bytes

    def as_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "at": iso(self.at_us),
            "device": self.device,
            "mqtt_topic": self.mqtt_topic,
            "failed_rules": list(self.rules),
            "reason": self.reason,
            "payload": "\n".join(body_of(self.payload, _SHOWN_BYTES)),
            "bytes": len(self.payload),
        }


@dataclass(frozen=True)
class Summary:
    """What is held: how many rows, by rule (a row may fail several), by Pulsar topic, and the newest."""

    total: int = 0
    oldest_us: int = 0
    newest_us: int = 0
    rules: Mapping[str, int] = field(default_factory=dict)
    topics: Mapping[str, int] = field(default_factory=dict)
    examples: tuple[Example, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "total": self.total,
            "oldest": iso(self.oldest_us) if self.total else None,
            "newest": iso(self.newest_us) if self.total else None,
            "rules": dict(self.rules),
            "topics": dict(self.topics),
            "examples": [one.as_json() for one in self.examples],
        }

    def as_text(self) -> str:
        """Return it for people."""
        if not self.total:
            return "nothing is held"
        lines = [f"{self.total} rows are held, judged from {iso(self.oldest_us)} to {iso(self.newest_us)}"]
        for title, counted in (("by rule", self.rules), ("by topic", self.topics)):
            lines += ["", title]
            lines += [f"  {count:>9}  {name}" for name, count in list(counted.items())[:_LINES]]
            if len(counted) > _LINES:
                lines.append(f"             and {len(counted) - _LINES} more")
        if self.examples:
            lines += ["", f"the newest {len(self.examples)}"]
        for one in self.examples:
            head, *rest = body_of(one.payload, _SHOWN_BYTES) or [""]
            lines += [
                f"  {iso(one.at_us)}  {one.mqtt_topic or '(no topic)'}  {', '.join(one.rules)}",
                f"      {one.reason}",
                f"      {head}{' …' if rest else ''}",
            ]
        return text_of(lines)


def count_held(quarantine: DataFrame, selection: Selection, examples: int) -> Summary:
    """Count the rows that are meant, and take the newest of them, newest first."""
    from pyspark.sql import functions as F

    rows = quarantine.where(selection.column())
    at = F.unix_micros("processed_at")
    span = rows.agg(F.count("*").alias("total"), F.min(at).alias("oldest"), F.max(at).alias("newest")).first()
    assert span is not None  # an aggregate without keys gives one row
    if not span["total"]:
        return Summary()
    by_rule = rows.select(F.explode("failed_rules").alias("name")).groupBy("name").count().collect()
    partitions = rows.groupBy(F.col("__topic").alias("name")).count().collect()
    topics: dict[str, int] = {}
    for row in partitions:
        name = base_topic(row["name"] or "")
        topics[name] = topics.get(name, 0) + row["count"]
    newest = rows.orderBy(at.desc(), "__topic", "partition", F.desc("ledger_id"), F.desc("entry_id"))
    taken = newest.select(at.alias("at"), "device", "mqtt_topic", "failed_rules", "reason", "payload").limit(
        examples
    )
    return Summary(
        span["total"],
        span["oldest"] or 0,
        span["newest"] or 0,
        _most_first({row["name"]: row["count"] for row in by_rule}),
        _most_first(topics),
        tuple(_example(row) for row in (taken.collect() if examples else ())),
    )


def _example(row: Any) -> Example:
    return Example(
        row["at"] or 0,
        row["device"],
        row["mqtt_topic"],
        tuple(row["failed_rules"] or ()),
        row["reason"] or "",
        bytes(row["payload"] or b""),
    )


def _most_first(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))


def outcome_json(outcome: Outcome, dry_run: bool) -> dict[str, Any]:
    """Return what a replay did, for programs."""
    return {"dry_run": dry_run, **asdict(outcome), "rules": dict(outcome.rules)}


def outcome_text(outcome: Outcome, dry_run: bool) -> str:
    """Return what a replay did, for people."""
    if outcome.finished:
        begin = "finished a replay that was cut, by the rules that it began with: "
    else:
        begin = "would replay: " if dry_run else ""
    lines = [
        f"{begin}{outcome.held} rows held, {outcome.passed} readings pass ({outcome.new} of them new in silver), "
        f"{outcome.failed} still fail"
    ]
    lines += [f"  {count:>9}  {name}" for name, count in outcome.rules.items()]
    if outcome.left:
        lines.append(
            f"{outcome.left} stay as they are: bronze has no message for them, or the decoders find no such reading "
            "in it"
        )
    return text_of(lines)
