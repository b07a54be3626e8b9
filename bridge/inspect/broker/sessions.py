"""The tries of persistent sessions: what a broker keeps for an offline client, how long, and over a restart."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Final

from bridge.inspect.broker.bench import PATIENCE_S, Bench, LostError, NotTriedError, Peer, Version
from bridge.inspect.broker.findings import Outcome

__all__ = ["expiry", "over_restart", "queue", "session"]

_QUEUED: Final = (b"1", b"2", b"3")
_SOON_S: Final = 0.5
_EXPIRY_S: Final = 1


def session(bench: Bench, version: Version) -> Outcome:
    """Queue messages for an offline session, receive them without an acknowledgement, reconnect."""
    name, topic = f"session{version[0]}", bench.topic("session", version[0])
    again = partial(bench.peer, name, version, persistent=True)
    _queue(bench, again, topic)
    with again(holds=True) as peer:
        present = peer.connect().session_present
        queued = peer.receive(len(_QUEUED))
        peer.vanish()
    with again() as peer:
        repeated = peer.receive(len(_QUEUED))
    with again() as peer:
        rest = peer.receive(1, _SOON_S)
    problems = []
    if not present or queued != list(_QUEUED):
        problems.append(f"{len(queued)} of {len(_QUEUED)} queued messages arrive, session present: {_yes(present)}")
    elif repeated != list(_QUEUED):
        problems.append(f"{len(repeated)} of {len(_QUEUED)} unacknowledged messages arrive again")
    if problems:
        return Outcome(problems[0], ("ingest: messages are lost whenever ingest is not connected",), failed=True)
    if rest:
        return Outcome(
            "kept; acknowledged messages arrive again", ("ingest: more repeats: give messages an id (reading_id)",)
        )
    return Outcome("kept: queued messages arrive, unacknowledged ones arrive again")


def expiry(bench: Bench) -> Outcome:
    """Leave a session with an expiry of a second, and reconnect after it."""
    if bench.protocol != "5":
        raise NotTriedError("needs MQTT 5, which the broker does not accept")
    with bench.peer("expiry", persistent=True, expiry_s=_EXPIRY_S) as peer:
        peer.subscribe(bench.topic("expiry"))
    end = time.monotonic() + _EXPIRY_S + 1.5
    with bench.peer("waiting") as waiting:
        waiting.wait(lambda: time.monotonic() >= end, _EXPIRY_S + PATIENCE_S)
    with bench.peer("expiry", persistent=True, expiry_s=_EXPIRY_S) as peer:
        present = peer.connect().session_present
    if present:
        return Outcome(
            f"exists 1.5 s after its expiry of {_EXPIRY_S} s",
            ("ingest: the broker deletes former sessions late or never: name them in mqtt.former_client_ids",),
        )
    return Outcome("ends after its expiry")


def queue(bench: Bench) -> Outcome:
    """Publish many messages for an offline session."""
    topic, count = bench.topic("queue"), bench.messages
    again = partial(bench.peer, "queue", persistent=True)
    with again() as peer:
        peer.subscribe(topic)
    with bench.peer("writer") as writer:
        reasons = writer.publish_all(topic, [b"%d" % i for i in range(count)])
    refused = sum(reason >= 0x80 for reason in reasons)
    with again() as peer:
        got = sorted({int(payload) for payload in peer.receive(count - refused, 1.5)})
    if len(got) == count:
        return Outcome(f"all of {count} messages are queued")
    if len(got) == count - refused:
        return Outcome(
            f"{len(got)} of {count} messages are queued, the broker refuses the others",
            ("devices: keep and resend what the broker refuses while ingest is offline",),
        )
    which = "newest" if got and got[0] == 0 else "oldest"
    return Outcome(
        f"{len(got)} of {count} messages are queued; the broker confirms the others and drops the {which}",
        (
            "ingest: an outage loses messages: raise the broker's limit of queued messages for each session "
            "(max_queued_messages of Mosquitto, max-queue of HiveMQ CE)",
        ),
    )


def over_restart(bench: Bench, wait_s: float, report: Callable[[str], None]) -> Outcome:
    """Leave a session with messages and a retained message, wait for a restart of the broker, and look for them."""
    topic, status = bench.topic("restart", "queued"), bench.topic("restart", "retained")
    again = partial(bench.peer, "restart", persistent=True)
    _queue(bench, again, topic)
    with bench.more_time(wait_s):
        with bench.peer("monitor") as monitor:
            monitor.publish(status, b"kept", retain=True)
            report(f"Restart the MQTT broker {bench.mqtt.host}:{bench.mqtt.port} now (waiting at most {wait_s:g} s).")
            try:
                monitor.wait(lambda: False, wait_s)
            except LostError:
                report("The connection ended; waiting for the broker.")
        _await_broker(bench)
    with bench.more_time(4 * PATIENCE_S):
        with again() as peer:
            present = peer.connect().session_present
            queued = peer.receive(len(_QUEUED))
        with bench.peer("late") as late:
            late.subscribe(status)
            kept = b"kept" in late.receive(1)
    result = (
        f"session: {_yes(present)}, queued messages: {len(queued)} of {len(_QUEUED)}, retained message: {_yes(kept)}"
    )
    follows = []
    if not present or len(queued) < len(_QUEUED):
        follows.append("ingest: a restart of the broker loses messages: make it durable")
    if not present:
        follows.append("push: devices subscribe again, and until then lack their commands: `push.confirm: device`")
    if not kept:
        follows.append("devices: a retained status is lost at a restart: publish it at each connect")
    return Outcome(result, tuple(follows))


def _queue(bench: Bench, again: Callable[[], AbstractContextManager[Peer]], topic: str) -> None:
    with again() as peer:
        peer.subscribe(topic)
    with bench.peer("writer") as writer:
        writer.publish_all(topic, list(_QUEUED))


def _await_broker(bench: Bench) -> None:
    while True:
        try:
            with bench.peer("monitor"):
                return
        except LostError:
            bench.check_time(time.monotonic())
            time.sleep(0.2)


def _yes(value: bool) -> str:
    return "yes" if value else "no"
