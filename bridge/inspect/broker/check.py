"""Runs the tries at one broker, one after another, and returns their findings. A failure is a finding, not an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from bridge.errors import PulsebridgeError
from bridge.inspect.broker.bench import Bench, LostError
from bridge.inspect.broker.tries import TRIES, Outcome, Try, over_restart
from bridge.settings import MqttSettings, Settings

__all__ = ["BrokerFinding", "BrokerReport", "State", "check_broker"]

State = Literal["ok", "note", "failed", "not tried"]
"""``note``: it works, but something follows. ``failed``: ingest or push needs it."""


@dataclass(frozen=True, slots=True)
class BrokerFinding:
    """One try: what was tried, what the broker did, what follows for ingest, push and devices."""

    name: str
    state: State
    tried: str
    result: str
    follows: tuple[str, ...] = ()


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


def check_broker(
    settings: Settings,
    link: str,
    mqtt: MqttSettings,
    *,
    messages: int,
    tries: Sequence[Try] = TRIES,
    restart_s: float = 0.0,
    report: Callable[[str], None] = lambda _line: None,
) -> BrokerReport:
    """Make the ``tries`` at the broker of ``mqtt``, and delete what they left there.

    With ``restart_s``, wait that long for a restart of the broker; ``report`` gets a line that requests it.
    """
    bench, address = Bench(settings, mqtt, messages=messages), f"{mqtt.host}:{mqtt.port}"
    if restart_s:
        act = partial(over_restart, wait_s=restart_s, report=report)
        tries = (*tries, Try("restart", "queue messages and retain one, restart the broker", act))
    try:
        found = tuple(_findings(bench, tries))
    finally:
        left = bench.tidy()
        for one in left:
            report(f"{address}: may still have {one}")
    return BrokerReport(link, address, found, tuple(left))


def _findings(bench: Bench, tries: Sequence[Try]) -> Iterator[BrokerFinding]:
    for one in tries:
        state: State
        try:
            outcome = one.act(bench)
            state = "failed" if outcome.failed else "note" if outcome.follows else "ok"
        except PulsebridgeError as e:
            outcome = Outcome(e.what, () if e.remedy is None else (e.remedy,))
            state = "not tried" if not isinstance(e, LostError) else "failed" if one.needed else "note"
        yield BrokerFinding(one.name, state, one.tried, outcome.result, outcome.follows)
        if not bench.versions or (one.name == "QoS" and state == "failed"):
            return  # the others would only wait
