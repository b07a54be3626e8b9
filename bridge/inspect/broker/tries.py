"""What one check tries at a broker, and what follows from each result for ingest, push and devices."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from bridge.errors import PulsebridgeError
from bridge.inspect.broker.bench import PATIENCE_S, REFUSED, Bench, LostError, NotTriedError, Peer, Version
from bridge.mqtt.types import DISCONNECT_TAKEN_OVER

__all__ = ["TRIES", "Outcome", "Try", "over_restart"]

_NO_SUBSCRIBERS: Final = 0x10
_FEW: Final = 12
_WINDOW: Final = 4
_LARGE: Final = 1024 * 1024
_QUEUED: Final = (b"1", b"2", b"3")
_SEQUENCE: Final = tuple(b"%d" % i for i in range(10))
"""Enough to see a random order, and fewer than brokers send before an acknowledgement (20 of Mosquitto)."""
_BURSTS: Final = 100
_BURST: Final = 8
_EXPIRY_S: Final = 1
_REPEAT_S: Final = 40.0
"""Time for unacknowledged messages to arrive again, in seconds. NATS resends them after 30 s (ack_wait)."""
_SILENCE_S: Final = 1.5
"""Silence after which the rest of many messages is not expected, in seconds."""
_SOON_S: Final = 0.5
"""Silence after which no further message is expected, in seconds."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the broker did, and what follows from it. ``failed``: ingest or push needs it."""

    result: str
    follows: tuple[str, ...] = ()
    failed: bool = False


class Try(NamedTuple):
    """One try. Ingest or push needs what is ``needed``: a connection that the broker closes then is a failure."""

    name: str
    tried: str
    act: Callable[[Bench], Outcome]
    needed: bool = False


# --- connections ---


def _versions(bench: Bench) -> Outcome:
    every: tuple[Version, ...] = ("3.1", "3.1.1", "5")
    accepted: list[Version] = []
    refusals: dict[Version, PulsebridgeError] = {}
    for version in every:
        try:
            with bench.peer("version", version):
                accepted.append(version)
        except LostError as e:
            refusals[version] = e
    bench.versions = accepted
    wanted = bench.mqtt.protocol
    if not accepted:
        first = refusals[wanted]
        return Outcome(first.what, (first.remedy or "set mqtt.host and mqtt.port, or start the broker",), failed=True)
    follows = []
    if wanted not in accepted:
        follows.append(f"ingest, push: set mqtt.protocol to {accepted[-1]}, because the broker refuses {wanted}")
    elif accepted[-1] == "5" != wanted:
        follows.append("ingest, push: set mqtt.protocol to 5; the broker then reports refusals and absent subscribers")
    if "5" not in accepted:
        follows.append("push: `push.confirm: device` and `push.position_in: topic`, because the broker lacks MQTT 5")
    if refusals:
        follows.append(f"devices: MQTT {' and '.join(refusals)} cannot connect here")
    return Outcome(f"accepts {', '.join(accepted)}", tuple(follows), failed=wanted not in accepted)


def _limits(bench: Bench) -> Outcome:
    _needs(bench, "5")
    asked, window = int(bench.settings.mqtt.session_expiry), bench.settings.push.limits.window
    with bench.peer("limits", persistent=True, expiry_s=asked) as peer:
        granted = peer.granted
    expiry = asked if granted.session_expiry_s is None else granted.session_expiry_s
    size = granted.maximum_packet_size
    follows = (
        (
            expiry < asked,
            f"ingest: the broker keeps a session for {expiry} s: give mqtt.session_expiry at most that, and do not be "
            "offline longer",
        ),
        (
            granted.receive_maximum < window,
            f"push: at most {granted.receive_maximum} commands of a partition are unconfirmed at the same time, not "
            f"push.limits.window ({window})",
        ),
        (size > 0, "push: larger commands are rejected; devices cannot publish larger messages"),
        (granted.maximum_qos < 2, f"push: a command of a QoS above {granted.maximum_qos} is rejected"),
        (not granted.retain_available, "push: a retained command is rejected"),
        (not granted.wildcards_available, "ingest: filters with + and # do not work"),
    )
    return Outcome(
        f"receive maximum {granted.receive_maximum}, packet size {f'{size} bytes' if size else 'not limited'}, session "
        f"expiry {expiry} s, topic aliases {granted.topic_alias_maximum}, maximum QoS {granted.maximum_qos}",
        tuple(text for true, text in follows if true),
        failed=granted.maximum_qos == 0 or not granted.wildcards_available,
    )


def _takeover(bench: Bench) -> Outcome:
    with bench.peer("takeover", persistent=True) as first:
        try:
            with bench.peer("takeover", persistent=True), suppress(LostError):
                first.wait(lambda: False, 1.0)
        except LostError as e:
            follows = "push: another process cannot take partitions over from one that hangs"
            return Outcome(f"the second connection is refused: {e.what}", (follows,), failed=True)
    if first.lost is None:
        return Outcome("both connections stay", ("push: a former owner of a partition may still publish",), failed=True)
    if first.lost.reason == DISCONNECT_TAKEN_OVER:
        return Outcome("the first connection ends with DISCONNECT 0x8E")
    if bench.versions[-1] != "5":
        return Outcome("the first connection ends")
    return Outcome(
        "the first connection ends without the reason 0x8E",
        ("ingest: two processes with one client id do not notice each other: give each a client id of its own",),
    )


# --- messages ---


def _qos(bench: Bench) -> Outcome:
    topic = bench.topic("qos")
    problems = {}
    with bench.peer("reader") as reader:
        reader.subscribe(topic, 1)
        for level in (1, 0, 2):
            problem = _not_delivered(bench, reader, topic, level)
            if problem and level == 1:
                rights = bench.rights("read and write")
                follows = f"ingest, push: need QoS 1; if an access list denies it without an error, {rights}"
                return Outcome(f"QoS 1: {problem}", (follows,), failed=True)
            problems[level] = problem
    granted = 2
    with suppress(LostError), bench.peer("reader") as reader:
        granted = reader.subscribe(topic, 2)
    follows_2 = [f"devices: QoS 2 is downgraded: a subscription gets QoS {granted}"] if granted < 2 else []
    if problems[2]:
        follows_2.append("devices, push: publish at QoS 1")
    parts = [f"QoS {level}: {problem or 'delivered'}" for level, problem in sorted(problems.items())]
    return Outcome(f"{', '.join(parts)}; grants QoS {granted}", tuple(follows_2))


def _not_delivered(bench: Bench, reader: Peer, topic: str, level: int) -> str:
    """Return why a message of this QoS does not reach the reader, empty if it does."""
    payload = b"qos %d" % level
    try:
        with bench.peer("writer") as writer:
            if level > writer.granted.maximum_qos:
                return "refused by CONNACK"
            reason = writer.publish(topic, payload, level)
    except LostError as e:
        return e.what
    if payload in reader.receive(len(reader.messages) + 1):
        return ""
    if reason >= REFUSED:
        return f"refused with 0x{reason:02X}"
    return "confirmed, not delivered" if level else "not delivered"


def _no_subscribers(bench: Bench) -> Outcome:
    _needs(bench, "5")
    topic = bench.topic("unserved")
    with bench.peer("writer") as writer:
        alone = writer.publish(topic, b"")
        with bench.peer("reader") as reader:
            reader.subscribe(topic)
            served = writer.publish(topic, b"")
    result = f"PUBACK 0x{alone:02X} without a subscriber, 0x{served:02X} with one"
    if alone != _NO_SUBSCRIBERS:
        why = "and push.presence.rules, because the broker does not report 0x10 (no matching subscribers)"
        return Outcome(result, (f"push: `push.confirm: device` {why}",))
    if served != 0:
        return Outcome(result, ("push: `push.confirm: device`, because the broker reports 0x10 of online devices",))
    return Outcome(result)


def _retained(bench: Bench) -> Outcome:
    topic = bench.topic("retained")
    with bench.peer("writer") as writer, bench.peer("live") as live:
        if not writer.granted.retain_available:
            lacks = "devices: a retained status is not possible: publish it at each connect"
            return Outcome("refused by CONNACK", (lacks,))
        live.subscribe(topic)
        writer.publish(topic, b"kept", retain=True)
        kept = _payloads_for_new(bench, topic, PATIENCE_S) == [b"kept"]
        live.receive(1)
        writer.publish(topic, b"", retain=True)
    if not kept:
        return Outcome("not kept", ("devices: a retained status is lost: publish it at each connect",))
    deleted = not _payloads_for_new(bench, topic, _SOON_S)
    follows = [] if deleted else ["devices: an empty payload does not delete the retained message"]
    if bench.versions[-1] == "5" and not any(message.retain for message in live.messages):
        follows.append("ingest: messages do not show whether the device retained them, as with MQTT 3.1.1")
    return Outcome(f"kept{', deleted by an empty payload' if deleted else ''}", tuple(follows))


def _payloads_for_new(bench: Bench, topic: str, silence_s: float) -> list[bytes]:
    """Return what a new subscription gets first."""
    with bench.peer("late") as late:
        late.subscribe(topic)
        return late.receive(1, silence_s)


def _receive_maximum(bench: Bench) -> Outcome:
    _needs(bench, "5")
    topic = bench.topic("window")
    with bench.peer("window", holds=True, receive_maximum=_WINDOW) as reader, bench.peer("writer") as writer:
        reader.subscribe(topic)
        writer.publish_all(topic, [b"%d" % i for i in range(_FEW)])
        first = len(reader.receive(_FEW, _SOON_S))
        reader.acknowledge()
        every = len(reader.receive(_FEW))
    result = f"{first} of {_FEW} arrive with a receive maximum of {_WINDOW}, {every} after the acknowledgements"
    if first > _WINDOW:
        return Outcome(result, ("ingest: the broker ignores ingest.limits.in_flight; ingest then stops reading",))
    if every < _FEW:
        return Outcome(result, ("ingest: messages do not follow the acknowledgements",), failed=True)
    return Outcome(result)


def _order(bench: Bench) -> Outcome:
    """Artemis exchanges some in one of twenty bursts, and none in a long one."""
    topic, bursts = bench.topic("order"), max(1, min(_BURSTS, bench.messages // _BURST))
    reordered, sent = 0, [b"%d" % i for i in range(_BURST)]
    with bench.peer("reader") as reader, bench.peer("writer") as writer:
        reader.subscribe(topic)
        for _ in range(bursts):
            reader.messages.clear()
            writer.publish_all(topic, sent)
            got = reader.receive(_BURST)
            if sorted(got) != sorted(sent):
                lost = "ingest: the broker loses confirmed messages"
                return Outcome(f"{len(set(got))} of {_BURST} arrive", (lost,), failed=True)
            reordered += got != sent
    if reordered:
        wait = "devices: wait for each PUBACK, because the broker reorders messages in flight"
        return Outcome(f"{reordered} of {bursts} bursts of {_BURST} messages do not arrive in order", (wait,))
    return Outcome(f"{bursts} bursts of {_BURST} messages arrive in order")


def _wildcards(bench: Bench) -> Outcome:
    arrived, lost = [], {}
    with bench.peer("reader") as reader:
        reader.subscribe(bench.topic("wild", "+", "end", "#"))
        for name, level in (("a plain level", "a"), ("one with a dot", "a.b"), ("one with a space", "a b")):
            topic, before = bench.topic("wild", level, "end", "x"), len(reader.messages)
            try:
                with bench.peer("writer") as writer:
                    writer.publish(topic, b"")
            except LostError:
                lost[name] = "the broker closes the connection"
                continue
            reader.receive(before + 1, PATIENCE_S if level == "a" else _SOON_S)
            topics = [message.topic for message in reader.messages[before:]]
            if topics == [topic]:
                arrived.append(name)
            else:
                lost[name] = f"arrives as {topics[0]}" if topics else "not delivered"
    follows = [f"devices: no topics with {name.removeprefix('one with ')} in a level" for name in lost if "one" in name]
    plain = "a plain level" in arrived
    if not plain:
        follows.append("ingest: filters with + and # do not work")
    parts = [f"+ matches {', '.join(arrived)}"] if arrived else []
    parts += [f"{name}: {what}" for name, what in lost.items()]
    return Outcome("; ".join(parts), tuple(follows), failed=not plain)


def _large(bench: Bench) -> Outcome:
    topic, result = bench.topic("large"), ""
    with bench.peer("reader") as reader:
        reader.subscribe(topic)
        try:
            with bench.peer("writer") as writer:
                if 0 < writer.granted.maximum_packet_size < _LARGE + 2 * len(topic):
                    result = "refused by CONNACK"
                elif (reason := writer.publish(topic, b"0" * _LARGE)) >= REFUSED:
                    result = f"refused with 0x{reason:02X}"
        except LostError as e:
            result = f"not accepted: {e.what}"
        if not result and not reader.receive(1):
            result = "confirmed, not delivered"
    if not result:
        return Outcome("delivered")
    return Outcome(result, ("devices, push: smaller messages, or a larger limit of the broker",))


def _shared(bench: Bench) -> Outcome:
    topic = bench.topic("shared")
    unusable = ("ingest: do not set ingest.share; use --workers, which divide the filters",)
    with bench.peer("left") as left, bench.peer("right") as right, bench.peer("writer") as writer:
        if not left.granted.shared_available:
            return Outcome("refused by CONNACK", unusable)
        try:
            for one in (left, right):
                one.subscribe(f"$share/pulsebridge-check/{topic}")
        except (LostError, NotTriedError) as e:
            return Outcome(e.what, unusable)
        writer.publish_all(topic, [b"%d" % i for i in range(_FEW)])
        got = left.receive(_FEW, _SILENCE_S), right.receive(_FEW, _SILENCE_S)
    arrived = len({*got[0], *got[1]})
    if arrived < _FEW:
        return Outcome(f"{arrived} of {_FEW} arrive", unusable)
    if len(got[0]) + len(got[1]) > _FEW:
        return Outcome("each client gets each message", unusable)
    return Outcome(f"each message once: {len(got[0])} and {len(got[1])} of {_FEW}")


# --- persistent sessions ---


def _session(bench: Bench, version: Version) -> Outcome:
    _needs(bench, version)
    name, topic = f"session{version[0]}", bench.topic("session", version[0])
    again = partial(bench.peer, name, version, persistent=True)
    with again() as peer:
        peer.subscribe(topic)
    with bench.peer("writer") as writer:
        for payload in _SEQUENCE:  # one at a time: the try "order" has several in flight
            writer.publish(topic, payload)
    with again(holds=True) as peer:
        present = peer.granted.session_present
        queued = peer.receive(len(_SEQUENCE))
        peer.vanish()
    began = time.monotonic()
    with again() as peer:
        repeated = peer.receive(len(_SEQUENCE), _REPEAT_S)
        late = time.monotonic() - began > PATIENCE_S
    with again() as peer:
        rest = peer.receive(1, _SOON_S)
    for what, got in (("queued messages arrive", queued), ("unacknowledged messages arrive again", repeated)):
        if not present or sorted(got) != list(_SEQUENCE):
            lost = "ingest: messages are lost whenever ingest is not connected"
            text = f"{len(got)} of {len(_SEQUENCE)} {what}, session present: {_yes(present)}"
            return Outcome(text, (lost,), failed=True)
        if got != list(_SEQUENCE):
            order = "ingest: messages arrive out of order whenever ingest was not connected"
            return Outcome(f"{what} out of order", (order,), failed=True)
    if late:
        order = "ingest: after a reconnect unacknowledged messages arrive late, after newer ones"
        return Outcome("kept; unacknowledged messages arrive again, but not at the reconnect", (order,))
    if rest:
        repeats = "ingest: more repeats: give messages an id (reading_id)"
        return Outcome("kept; acknowledged messages arrive again", (repeats,))
    return Outcome("kept: queued messages arrive, unacknowledged ones arrive again")


def _expiry(bench: Bench) -> Outcome:
    _needs(bench, "5")
    again = partial(bench.peer, "expiry", persistent=True, expiry_s=_EXPIRY_S)
    with again() as peer:
        peer.subscribe(bench.topic("expiry"))
    time.sleep(_EXPIRY_S + 1.5)
    with again() as peer:
        present = peer.granted.session_present
    if not present:
        return Outcome("ends after its expiry")
    return Outcome(
        f"exists 1.5 s after its expiry of {_EXPIRY_S} s",
        ("ingest: the broker deletes former sessions late or never: name them in mqtt.former_client_ids",),
    )


def _queue(bench: Bench) -> Outcome:
    topic, count = bench.topic("queue"), bench.messages
    again = partial(bench.peer, "queue", persistent=True)
    with again() as peer:
        peer.subscribe(topic)
    with bench.peer("writer") as writer:
        reasons = writer.publish_all(topic, [b"%d" % i for i in range(count)])
    accepted = sum(reason < REFUSED for reason in reasons)
    with again() as peer:
        got = sorted({int(payload) for payload in peer.receive(accepted, _SILENCE_S)})
    if len(got) == count:
        return Outcome(f"all of {count} messages are queued")
    if len(got) == accepted:
        return Outcome(
            f"{accepted} of {count} messages are queued, the broker refuses the others",
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
    """Leave a session with messages and a retained message, wait for a restart of the broker, and look for them.

    ``report`` gets the request for the restart. The wait is at most ``wait_s`` for the end and for the start.
    """
    topic, status = bench.topic("restart", "queued"), bench.topic("restart", "retained")
    again = partial(bench.peer, "restart", persistent=True)
    with again() as peer:
        peer.subscribe(topic)
    with bench.peer("writer") as writer:
        writer.publish_all(topic, _QUEUED)
        writer.publish(status, b"kept", retain=True)
        report(f"Restart the MQTT broker {bench.mqtt.host}:{bench.mqtt.port} now (waiting at most {wait_s:g} s).")
        with suppress(LostError):
            writer.wait(lambda: False, wait_s)
            raise NotTriedError(f"the broker was not restarted within {wait_s:g} s")
    report("The connection ended; waiting for the broker.")
    _await_broker(bench, time.monotonic() + wait_s)
    try:
        with again() as peer:
            present = peer.granted.session_present
            queued = len(peer.receive(len(_QUEUED)))
    except LostError as e:
        lost = "ingest: a restart of the broker loses messages: delete its session, or change mqtt.client_id"
        return Outcome(f"the session cannot reconnect: {e.what}", (lost,), failed=True)
    kept = b"kept" in _payloads_for_new(bench, status, PATIENCE_S)
    follows = (
        (not present or queued < len(_QUEUED), "ingest: a restart of the broker loses messages: make it durable"),
        (not present, "push: devices subscribe again, and until then lack their commands: `push.confirm: device`"),
        (not kept, "devices: a retained status is lost at a restart: publish it at each connect"),
    )
    return Outcome(
        f"session: {_yes(present)}, queued messages: {queued} of {len(_QUEUED)}, retained message: {_yes(kept)}",
        tuple(text for true, text in follows if true),
    )


def _await_broker(bench: Bench, until: float) -> None:
    while True:
        try:
            with bench.peer("monitor"):
                return
        except LostError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def _needs(bench: Bench, version: Version) -> None:
    if version not in bench.versions:
        raise NotTriedError(f"needs MQTT {version}, which the broker does not accept")


def _yes(value: bool) -> str:
    return "yes" if value else "no"


TRIES: Final = (
    Try("versions", "connect with MQTT 3.1, 3.1.1 and 5", _versions, True),
    Try("limits", "read the limits in CONNACK", _limits),
    Try("QoS", "publish at QoS 0, 1 and 2, subscribe at QoS 2", _qos, True),
    Try(
        "session, MQTT 5",
        "queue messages for an offline session, receive them without an acknowledgement, reconnect",
        partial(_session, version="5"),
        True,
    ),
    Try("session, MQTT 3.1.1", "the same", partial(_session, version="3.1.1"), True),
    Try("session expiry", "leave a session with an expiry of 1 s, reconnect after 2.5 s", _expiry),
    Try("takeover", "connect twice with one client id", _takeover, True),
    Try("receive maximum", "receive with a receive maximum of 4", _receive_maximum),
    Try("order", "publish many messages without a wait for each PUBACK", _order, True),
    Try("no subscribers", "publish to a topic without a subscriber", _no_subscribers),
    Try("retained", "retain a message, subscribe, delete it", _retained),
    Try("wildcards", "subscribe with + and #, publish to levels with a dot and a space", _wildcards, True),
    Try("large message", "publish a message of 1 MiB", _large),
    Try("shared subscription", "share a subscription between two clients", _shared),
    Try("queue", "publish many messages for an offline session", _queue),
)
"""In their order. The first one sets ``Bench.versions``; nothing else can work without the first and the third."""
