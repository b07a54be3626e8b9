"""The result of one try at a broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["BrokerFinding", "BrokerReport", "Outcome", "State"]

State = Literal["ok", "note", "failed", "not tried"]
"""``note``: it works, but something follows. ``failed``: ingest or push needs it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the broker did, and what follows from it."""

    result: str
    follows: tuple[str, ...] = ()
    failed: bool = False

    @property
    def state(self) -> State:
        """The state of the finding."""
        if self.failed:
            return "failed"
        return "note" if self.follows else "ok"


@dataclass(frozen=True, slots=True)
class BrokerFinding:
    """One try: what was tried, what the broker did, what follows for ingest and push."""

    name: str
    state: State
    tried: str
    result: str
    follows: tuple[str, ...] = ()
    took_ms: int = 0


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """All findings at one broker, and what the check could not delete there."""

    link: str
    address: str
    findings: tuple[BrokerFinding, ...]
    left_behind: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether all that ingest and push need works, as far as it could be tried."""
        return all(one.state != "failed" for one in self.findings)
