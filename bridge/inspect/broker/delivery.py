"""The tries of connections and messages: versions, limits, QoS, subscriptions, order."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final

from bridge.errors import PulsebridgeError
from bridge.inspect.broker.bench import PATIENCE_S, Bench, LostError, NotTriedError, Peer, Version
from bridge.inspect.broker.findings import Outcome
from bridge.mqtt.types import DISCONNECT_TAKEN_OVER

__all__ = [
    "large",
    "limits",
    "no_subscribers",
    "order",
    "qos",
    "receive_maximum",
    "retained",
    "shared",
    "takeover",
    "versions",
    "wildcards",
]

_NO_SUBSCRIBERS: Final = 0x10
_FEW: Final = 12
_WINDOW: Final = 4
_LARGE: Final = 1024 * 1024
_REFUSED: Final = 0x80
_SOON_S: Final = 0.5
"""Silence after which no further message is expected, in seconds."""

_QOS_1: Final = "ingest, push: need QoS 1; if an access list denies it without an error, {}"


def versions(bench: Bench) -> Outcome:
    """Connect once with each version; the newest one serves the other tries."""
    every: tuple[Version, ...] = ("3.1", "3.1.1", "5")
    accepted: list[Version] = []
    refusals: dict[Version, PulsebridgeError] = {}
    for version in every:
        try:
            with bench.peer("version", version):
                accepted.append(version)
        except LostError as e:
            refusals[version] = e
    wanted = bench.mqtt.protocol
    if not accepted:
        first = refusals[wanted]
        return Outcome(first.what, (first.remedy or "set mqtt.host and mqtt.port, or start the broker",), failed=True)
    bench.versions, bench.protocol = accepted, accepted[-1]
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


def limits(bench: Bench) -> Outcome:
    """Read the limits of CONNACK."""
    _needs_5(bench)
    asked = int(bench.settings.mqtt.session_expiry)
    with bench.peer("limits", persistent=True, expiry_s=asked) as peer:
        granted = peer.connect()
    expiry = asked if granted.session_expiry_s is None else granted.session_expiry_s
    largest = f"{granted.maximum_packet_size} bytes" if granted.maximum_packet_size else "not limited"
    follows = []
    if expiry < asked:
        follows.append(
            f"ingest: the broker keeps a session for {expiry} s: give mqtt.session_expiry at most that, and do not be offline longer"
        )
    if granted.receive_maximum < bench.settings.push.limits.window:
        follows.append(
            f"push: at most {granted.receive_maximum} commands of a partition are unconfirmed at the same time, not "
            f"push.limits.window ({bench.settings.push.limits.window})"
        )
    if granted.maximum_packet_size:
        follows.append("push: larger commands are rejected; devices cannot publish larger messages")
    for available, what in (
        (granted.maximum_qos == 2, f"a command of a QoS above {granted.maximum_qos} is rejected"),
        (granted.retain_available, "a retained command is rejected"),
    ):
        if not available:
            follows.append(f"push: {what}")
    if not granted.wildcards_available:
        follows.append("ingest: filters with + and # do not work")
    return Outcome(
        f"receive maximum {granted.receive_maximum}, packet size {largest}, session expiry {expiry} s, topic aliases "
        f"{granted.topic_alias_maximum}, maximum QoS {granted.maximum_qos}",
        tuple(follows),
        failed=granted.maximum_qos == 0 or not granted.wildcards_available,
    )


def qos(bench: Bench) -> Outcome:
    """Publish at each QoS to a subscription of QoS 1, and subscribe at QoS 2."""
    one, two = bench.topic("qos", "one"), bench.topic("qos", "two")
    problems: dict[int, str] = {}
    with bench.peer("reader") as reader:
        reader.subscribe(one, 1)
        for level in (1, 0, 2):
            problem = _not_delivered(bench, reader, one, level)
            if problem:
                problems[level] = problem
            if 1 in problems:
                return Outcome(f"QoS 1: {problem}", (_QOS_1.format(bench.rights("read and write")),), failed=True)
    granted = 2
    with suppress(LostError), bench.peer("reader") as reader:
        granted = reader.subscribe(two, 2)
    follows = [] if granted == 2 else [f"devices: QoS 2 is downgraded: a subscription gets QoS {granted}"]
    if 2 in problems:
        follows.append("devices, push: publish at QoS 1")
    parts = [f"QoS {level}: {problems.get(level, 'delivered')}" for level in (0, 1, 2)]
    return Outcome(f"{', '.join(parts)}; grants QoS {granted}", tuple(follows))


def _not_delivered(bench: Bench, reader: Peer, topic: str, level: int) -> str:
    """Return why a message of this QoS does not reach the reader, empty if it does."""
    payload = b"qos %d" % level
    try:
        with bench.peer("writer") as writer:
            if level > writer.connect().maximum_qos:
                return "refused by CONNACK"
            reason = writer.publish(topic, payload, level)
    except LostError as e:
        return e.what
    if payload in reader.receive(len(reader.messages) + 1):
        return ""
    if reason >= _REFUSED:
        return f"refused with 0x{reason:02X}"
    return "confirmed, not delivered" if level else "not delivered"


def no_subscribers(bench: Bench) -> Outcome:
    """Publish to a topic without a subscriber, then with one."""
    _needs_5(bench)
    topic = bench.topic("unserved")
    with bench.peer("writer") as writer:
        alone = writer.publish(topic, b"")
        with bench.peer("reader") as reader:
            reader.subscribe(topic)
            served = writer.publish(topic, b"")
    result = f"PUBACK 0x{alone:02X} without a subscriber, 0x{served:02X} with one"
    if alone == _NO_SUBSCRIBERS and served == 0:
        return Outcome(result)
    if alone == _NO_SUBSCRIBERS:
        return Outcome(result, ("push: `push.confirm: device`, because the broker reports 0x10 of online devices",))
    return Outcome(
        result,
        (
            "push: `push.confirm: device` and push.presence.rules, because the broker does not report 0x10 (no matching "
            "subscribers)",
        ),
    )


def retained(bench: Bench) -> Outcome:
    """Retain a message, subscribe, delete the message, subscribe."""
    topic = bench.topic("retained")
    with bench.peer("writer") as writer, bench.peer("live") as live:
        if not writer.connect().retain_available:
            return Outcome(
                "refused by CONNACK", ("devices: a retained status is not possible: publish it at each connect",)
            )
        live.subscribe(topic)
        writer.publish(topic, b"kept", retain=True)
        with bench.peer("late") as late:
            late.subscribe(topic)
            found = [message for message in late.messages if message.retain] if late.receive(1) else []
        live.receive(1)
        flagged = any(message.retain for message in live.messages)
        writer.publish(topic, b"", retain=True)
    with bench.peer("late") as late:
        late.subscribe(topic)
        deleted = not late.receive(1, _SOON_S)
    if not found:
        return Outcome("not kept", ("devices: a retained status is lost: publish it at each connect",))
    follows = [] if deleted else ["devices: an empty payload does not delete the retained message"]
    if bench.protocol == "5" and not flagged:
        follows.append("ingest: messages do not show whether the device retained them, as with MQTT 3.1.1")
    return Outcome(f"kept{', deleted by an empty payload' if deleted else ''}", tuple(follows))


def receive_maximum(bench: Bench) -> Outcome:
    """Subscribe with a receive maximum, publish more, and acknowledge later."""
    _needs_5(bench)
    topic = bench.topic("window")
    with bench.peer("window", holds=True, receive_maximum=_WINDOW) as reader, bench.peer("writer") as writer:
        reader.subscribe(topic)
        writer.publish_all(topic, [b"%d" % i for i in range(_FEW)])
        reader.receive(_FEW, _SOON_S)
        first = len(reader.messages)
        reader.acknowledge()
        every = len(reader.receive(_FEW))
    result = f"{first} of {_FEW} arrive with a receive maximum of {_WINDOW}, {every} after the acknowledgements"
    if first > _WINDOW:
        return Outcome(result, ("ingest: the broker ignores ingest.limits.in_flight; ingest then stops reading",))
    if every < _FEW:
        return Outcome(result, ("ingest: messages do not follow the acknowledgements",), failed=True)
    return Outcome(result)


def order(bench: Bench) -> Outcome:
    """Publish many messages without a wait for each PUBACK."""
    topic, count = bench.topic("order"), min(100, bench.messages)
    sent = [b"%d" % i for i in range(count)]
    with bench.peer("reader") as reader, bench.peer("writer") as writer:
        reader.subscribe(topic)
        writer.publish_all(topic, sent)
        got = reader.receive(count)
    if sorted(got) != sorted(sent):
        return Outcome(
            f"{len(set(got))} of {count} arrive", ("ingest: the broker loses confirmed messages",), failed=True
        )
    if got != sent:
        return Outcome(
            "not in order", ("devices: wait for each PUBACK, because the broker reorders messages in flight",)
        )
    return Outcome(f"{count} messages in flight arrive in order")


def wildcards(bench: Bench) -> Outcome:
    """Subscribe with + and #, and publish to levels with a dot and with a space."""
    arrived, lost = [], {}
    with bench.peer("reader") as reader:
        reader.subscribe(bench.topic("wild", "+", "end", "#"))
        for name, level in (("a plain level", "a"), ("one with a dot", "a.b"), ("one with a space", "a b")):
            before = len(reader.messages)
            try:
                with bench.peer("writer") as writer:
                    writer.publish(bench.topic("wild", level, "end", "x"), b"")
            except LostError:
                lost[name] = "the broker closes the connection"
                continue
            reader.receive(before + 1, PATIENCE_S if level == "a" else _SOON_S)
            topics = [message.topic for message in reader.messages[before:]]
            if topics == [bench.topic("wild", level, "end", "x")]:
                arrived.append(name)
            else:
                lost[name] = f"arrives as {topics[0]}" if topics else "not delivered"
    follows = [f"devices: no topics with {name.split('with ')[1]} in a level" for name in lost if "with" in name]
    plain = "a plain level" in arrived
    if not plain:
        follows.append("ingest: filters with + and # do not work")
    parts = [f"+ matches {', '.join(arrived)}"] if arrived else []
    parts += [f"{name}: {what}" for name, what in lost.items()]
    return Outcome("; ".join(parts), tuple(follows), failed=not plain)


def large(bench: Bench) -> Outcome:
    """Publish a message of 1 MiB."""
    topic = bench.topic("large")
    with bench.peer("reader") as reader:
        reader.subscribe(topic)
        try:
            with bench.peer("writer") as writer:
                most = writer.connect().maximum_packet_size
                if 0 < most < _LARGE + _FEW * len(topic):
                    result = "refused by CONNACK"
                else:
                    reason = writer.publish(topic, b"0" * _LARGE)
                    result = f"refused with 0x{reason:02X}" if reason >= _REFUSED else ""
        except LostError as e:
            result = f"not accepted: {e.what}"
        if not result and not reader.receive(1):
            result = "confirmed, not delivered"
    if not result:
        return Outcome("delivered")
    return Outcome(result, ("devices, push: smaller messages, or a larger limit of the broker",))


def shared(bench: Bench) -> Outcome:
    """Share a subscription between two clients."""
    topic = bench.topic("shared")
    shared_filter = f"$share/pulsebridge-check/{topic}"
    unusable = "ingest: do not set ingest.share; use --workers, which divide the filters"
    sent = {b"%d" % i for i in range(_FEW)}
    try:
        with bench.peer("left") as left, bench.peer("right") as right, bench.peer("writer") as writer:
            if not left.connect().shared_available:
                return Outcome("refused by CONNACK", (unusable,))
            left.subscribe(shared_filter)
            right.subscribe(shared_filter)
            writer.publish_all(topic, sorted(sent))
            until = time.monotonic() + PATIENCE_S
            while len(left.messages) + len(right.messages) < _FEW and time.monotonic() < until:
                left.receive(_FEW, 0.1)
                right.receive(_FEW, 0.1)
            left.receive(_FEW + 1, 0.2)
            both = [left.receive(0), right.receive(0)]
    except LostError:
        return Outcome("the broker closes the connection at SUBSCRIBE", (unusable,))
    got = [*both[0], *both[1]]
    if set(got) != sent:
        return Outcome(f"{len(set(got))} of {_FEW} arrive", (unusable,))
    if len(got) > _FEW:
        return Outcome("each client gets each message", (unusable,))
    return Outcome(f"each message once: {len(both[0])} and {len(both[1])} of {_FEW}")


def takeover(bench: Bench) -> Outcome:
    """Connect twice with one client id."""
    with bench.peer("takeover", persistent=True) as first:
        try:
            with bench.peer("takeover", persistent=True), suppress(LostError):
                first.wait(lambda: False, 1.0)
        except LostError as e:
            return Outcome(
                f"the second connection is refused: {e.what}",
                ("push: another process cannot take partitions over from one that hangs",),
                failed=True,
            )
    if first.lost is None:
        return Outcome("both connections stay", ("push: a former owner of a partition may still publish",), failed=True)
    if first.lost.reason == DISCONNECT_TAKEN_OVER:
        return Outcome("the first connection ends with DISCONNECT 0x8E")
    if bench.protocol == "5":
        return Outcome(
            "the first connection ends without the reason 0x8E",
            ("ingest: two processes with one client id do not notice each other: give each a client id of its own",),
        )
    return Outcome("the first connection ends")


def _needs_5(bench: Bench) -> None:
    if bench.protocol != "5":
        raise NotTriedError("needs MQTT 5, which the broker does not accept")
