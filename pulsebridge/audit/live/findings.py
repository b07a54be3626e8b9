"""Findings of the live audit: hop, kind, device and time of each message that is not as expected."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Final

__all__ = ["Finding", "Hop", "Kind", "Report", "when"]


class Hop:
    """A step between two records."""

    DEVICE: Final = "device → Pulsar"
    BRONZE: Final = "Pulsar → bronze"
    ALERTS: Final = "alerts topic → alerts"
    COMMANDS: Final = "alerts → commands"
    RECEIPTS: Final = "commands → receipts"
    DEAD_LETTERS: Final = "receipts → dead letters"

    @staticmethod
    def table(name: str) -> str:
        """Return the hop into a typed table or its quarantine."""
        return f"Pulsar → {name}"


class Kind:
    """Kinds of findings. UNEXPECTED: the record before lacks the message."""

    MISSING: Final = "missing"
    REPEATED: Final = "repeated"
    REORDERED: Final = "reordered"
    ALTERED: Final = "altered"
    UNEXPECTED: Final = "unexpected"


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One message that is not as expected."""

    hop: str
    kind: str
    device: str
    at_us: int
    """Time of the message in Pulsar, µs since the epoch, or of the row if Pulsar lacks the message."""
    message: str
    """Position in Pulsar, id of the command, or number that the device gave."""
    detail: str = ""


def when(us: int) -> str:
    """Return a time in µs since the epoch as ISO 8601, UTC."""
    return datetime.fromtimestamp(us / 1e6, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass
class Report:
    """Result of an audit. ``found`` has the first ``most`` findings, ``counts`` the number of all."""

    since_us: int
    until_us: int
    most: int = 1000
    found: list[Finding] = field(default_factory=list)
    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    copies: dict[str, int] = field(default_factory=dict)
    """Redelivered copies by hop. At-least-once delivery allows them; with ``strict`` they are findings."""
    read: dict[str, int] = field(default_factory=dict)
    """Number of messages or rows that were compared, by record."""
    unseen: list[str] = field(default_factory=list)
    """What this audit could not compare, in words."""

    def add(self, finding: Finding) -> None:
        """Add a finding."""
        key = finding.hop, finding.kind
        self.counts[key] = self.counts.get(key, 0) + 1
        if len(self.found) < self.most:
            self.found.append(finding)

    def copy(self, hop: str, count: int = 1) -> None:
        """Count copies that at-least-once delivery allows."""
        self.copies[hop] = self.copies.get(hop, 0) + count

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not self.counts

    def as_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {
            "clean": self.clean,
            "since": when(self.since_us),
            "until": when(self.until_us),
            "read": self.read,
            "copies": self.copies,
            "not_compared": self.unseen,
            "counts": [{"hop": hop, "kind": kind, "count": n} for (hop, kind), n in sorted(self.counts.items())],
            "findings": [
                {"hop": f.hop, "kind": f.kind, "device": f.device, "time": when(f.at_us), "message": f.message, "detail": f.detail}
                for f in self.found
            ],
        }  # fmt: skip
