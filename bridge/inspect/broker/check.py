"""Runs the tries at one broker, one after another, and returns their findings. A failure is a finding, not an error."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

from bridge.errors import PulsebridgeError
from bridge.inspect.broker import delivery, sessions
from bridge.inspect.broker.bench import PATIENCE_S, Bench, LostError
from bridge.inspect.broker.findings import BrokerFinding, BrokerReport, Outcome, State
from bridge.settings import MqttSettings, Settings
from bridge.settings.units import Duration

__all__ = ["TRIES", "check_broker"]


class Try(NamedTuple):
    """One try. Ingest or push needs what is ``needed``: a connection that the broker closes then is a failure."""

    name: str
    tried: str
    act: Callable[[Bench], Outcome]
    needed: bool = False


TRIES: Final = (
    Try("versions", "connect with MQTT 3.1, 3.1.1 and 5", delivery.versions, True),
    Try("limits", "read the limits in CONNACK", delivery.limits),
    Try("QoS", "publish at QoS 0, 1 and 2, subscribe at QoS 2", delivery.qos, True),
    Try(
        "session, MQTT 5",
        "queue messages for an offline session, receive them without an acknowledgement, reconnect",
        partial(sessions.session, version="5"),
        True,
    ),
    Try("session, MQTT 3.1.1", "the same", partial(sessions.session, version="3.1.1"), True),
    Try("session expiry", "leave a session with an expiry of 1 s, reconnect after 2.5 s", sessions.expiry),
    Try("takeover", "connect twice with one client id", delivery.takeover, True),
    Try("receive maximum", "receive with a receive maximum of 4", delivery.receive_maximum),
    Try("order", "publish many messages without a wait for each PUBACK", delivery.order, True),
    Try("no subscribers", "publish to a topic without a subscriber", delivery.no_subscribers),
    Try("retained", "retain a message, subscribe, delete it", delivery.retained),
    Try("wildcards", "subscribe with + and #, publish to levels with a dot and a space", delivery.wildcards, True),
    Try("large message", "publish a message of 1 MiB", delivery.large),
    Try("shared subscription", "share a subscription between two clients", delivery.shared),
    Try("queue", "publish many messages for an offline session", sessions.queue),
)
"""In their order. The first one chooses the version of the others."""


def check_broker(
    settings: Settings,
    link: str,
    mqtt: MqttSettings,
    *,
    messages: int,
    time_limit_s: float,
    restart_s: float = 0.0,
    report: Callable[[str], None] = lambda _line: None,
) -> BrokerReport:
    """Try the broker of ``mqtt`` for at most ``time_limit_s``, and delete what the tries left there.

    With ``restart_s``, wait that long for a restart of the broker; ``report`` gets a line that requests it.
    """
    mqtt = mqtt.model_copy(update={"connect_timeout": Duration(PATIENCE_S)})
    bench = Bench(settings.model_copy(update={"mqtt": mqtt}), mqtt, messages=messages, time_limit_s=time_limit_s)
    left: list[str] = []
    try:
        found = tuple(_findings(bench, restart_s, report))
    finally:
        left = bench.tidy()
        for one in left:
            report(f"{mqtt.host}:{mqtt.port}: may still have {one}")
    return BrokerReport(link, f"{mqtt.host}:{mqtt.port}", found, tuple(left))


def _findings(bench: Bench, restart_s: float, report: Callable[[str], None]) -> Iterator[BrokerFinding]:
    tries = list(TRIES)
    if restart_s:
        act = partial(sessions.over_restart, wait_s=restart_s, report=report)
        tries.append(Try("restart", "queue messages and retain one, restart the broker", act))
    for one in tries:
        if one.name.startswith("session, ") and one.name.removeprefix("session, MQTT ") not in bench.versions:
            yield BrokerFinding(one.name, "not tried", one.tried, "the broker does not accept this version")
            continue
        yield _finding(one, bench)
        if not bench.versions or bench.versions == ["3.1"]:  # client ids of MQTT 3.1 are too short for the other tries
            return


def _finding(one: Try, bench: Bench) -> BrokerFinding:
    start = time.monotonic()
    try:
        outcome = one.act(bench)
        found = BrokerFinding(one.name, outcome.state, one.tried, outcome.result, outcome.follows)
    except LostError as e:
        state: State = "failed" if one.needed else "note"
        found = BrokerFinding(one.name, state, one.tried, e.what, _remedy(e))
    except PulsebridgeError as e:
        found = BrokerFinding(one.name, "not tried", one.tried, e.what, _remedy(e))
    took_ms = round((time.monotonic() - start) * 1000)
    return BrokerFinding(found.name, found.state, found.tried, found.result, found.follows, took_ms)


def _remedy(error: PulsebridgeError) -> tuple[str, ...]:
    return () if error.remedy is None else (error.remedy,)
