"""Output of ``pulsebridge dead-letters``: counts, lines and payloads of letters, and the report of a replay."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from bridge.dead_letters.records import DeadLetter
from bridge.dead_letters.replay import Report
from bridge.display import printable
from pulsebridge.output.text import iso, text_of

__all__ = ["Summary", "body_of", "report_json", "report_text"]


class Summary:
    """Counts letters and keeps the newest. ``keep`` is the number of lines to list."""

    def __init__(self, keep: int) -> None:
        self.total = 0
        self.replayed = 0
        self.lost = 0
        self.reasons: Counter[str] = Counter()
        self.topics: Counter[str] = Counter()
        self.oldest_us = 0
        self.newest_us = 0
        self._keep = keep
        self._rows: list[tuple[int, dict[str, Any]]] = []

    def add(self, letter: DeadLetter, *, replayed: bool) -> None:
        """Count a letter."""
        self.total += 1
        self.replayed += replayed
        self.lost += letter.lost_bytes > 0
        # Numbers differ from letter to letter; without them equal reasons share a line.
        self.reasons[re.sub(r"(?<!UTF-)\d+", "N", letter.reason)] += 1
        self.topics[letter.target or "(no rule named one)"] += 1
        self.oldest_us = min(self.oldest_us or letter.at_us, letter.at_us)
        self.newest_us = max(self.newest_us, letter.at_us)
        if self._keep:
            self._rows.append((letter.at_us, _row(letter, replayed)))
            if len(self._rows) > 4 * self._keep + 100:
                self._cut()

    def _cut(self) -> None:
        self._rows = sorted(self._rows, key=lambda row: row[0])[-self._keep :]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The newest letters, the oldest of them first."""
        self._cut()
        return [row for _, row in self._rows]

    def as_json(self) -> dict[str, Any]:
        """Return the summary for programs."""
        return {
            "total": self.total,
            "replayed": self.replayed,
            "truncated": self.lost,
            "oldest": iso(self.oldest_us) if self.total else None,
            "newest": iso(self.newest_us) if self.total else None,
            "reasons": dict(self.reasons.most_common()),
            "topics": dict(self.topics.most_common()),
            "letters": self.rows,
        }

    def as_text(self) -> str:
        """Return the summary for people."""
        if not self.total:
            return "no dead letters"
        lines = [
            f"{self.total} dead letters, {self.replayed} of them replayed, {self.lost} with only the payload's head",
            f"oldest {iso(self.oldest_us)}, newest {iso(self.newest_us)}",
        ]
        for title, counted in (("by reason", self.reasons), ("by topic", self.topics)):
            lines += ["", title] + [f"  {count:>8}  {name}" for name, count in counted.most_common(20)]
        if self.rows:
            lines += ["", f"the newest {len(self.rows)}"]
            for row in self.rows:
                state = "replayed" if row["replayed"] else "head only" if row["lost_bytes"] else ""
                origin = printable(row["mqtt_topic"] or row["topic"], 60)
                lines.append(
                    f"  {row['id']:<14} {row['at']}  {row['bytes']:>8} B  {state:<9}  {origin}: {row['reason']}"
                )
        return text_of(lines)


def _row(letter: DeadLetter, replayed: bool) -> dict[str, Any]:
    return {
        "id": str(letter.id),
        "at": iso(letter.at_us),
        "device": letter.device,
        "mqtt_topic": letter.mqtt_topic,
        "topic": letter.target,
        "reason": letter.reason,
        "bytes": len(letter.payload) + letter.lost_bytes,
        "lost_bytes": letter.lost_bytes,
        "replayed": replayed,
    }


def body_of(payload: bytes, limit: int) -> list[str]:
    """Return the lines of a payload's head: text if it is printable UTF-8, else a hex dump."""
    head = payload[:limit]
    try:
        text = head.decode()
    except UnicodeDecodeError as e:
        # A character that the limit cuts does not require a dump.
        text = head[: e.start].decode() if len(payload) > limit and e.start > limit - 4 else "\0"
    rest = [f"… {len(payload) - len(head)} more bytes"] if len(payload) > limit else []
    if all(c.isprintable() or c in "\n\r\t" for c in text):
        return [line.expandtabs(4).removesuffix("\r") for line in text.split("\n")] + rest
    lines = []
    for at in range(0, len(head), 16):
        row = head[at : at + 16]
        shown = "".join(chr(b) if 32 <= b < 127 else "." for b in row)
        lines.append(f"{at:08x}  {row.hex(' '):<47}  {shown}")
    return lines + rest


def report_json(report: Report, *, dry_run: bool) -> dict[str, Any]:
    """Return the report of a replay for programs."""
    return {
        "dry_run": dry_run,
        "replayed": dict(report.replayed.most_common()),
        "already": report.already,
        "refused": [{"id": str(one.letter.id), "why": one.why} for one in report.refused],
        "released": report.released,
        "unanswered": report.unanswered,
    }


def report_text(report: Report, *, dry_run: bool) -> str:
    """Return the report of a replay for people."""
    total = sum(report.replayed.values())
    lines = [f"{total} {'would be replayed' if dry_run else 'replayed'}, {report.already} were replayed before"]
    lines += [f"  {count:>8}  {topic}" for topic, count in report.replayed.most_common()]
    lines += _refused_lines((one.why, str(one.letter.id)) for one in report.refused)
    lines += [f"released: {topic}" for topic in report.released]
    lines += [
        f"{client} did not answer: if that ingest worker still runs, check for new dead letters and repeat the replay"
        for client in report.unanswered
    ]
    return text_of(lines)


def _refused_lines(refused: Iterable[tuple[str, str]]) -> list[str]:
    of: dict[str, list[str]] = {}
    for why, letter in refused:
        of.setdefault(why, []).append(letter)
    return [
        f"refused {len(ids)}: {why} ({', '.join(ids[:3])}{', …' if len(ids) > 3 else ''})" for why, ids in of.items()
    ]
