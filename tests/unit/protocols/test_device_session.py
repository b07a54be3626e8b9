"""A device's session: order, repeats, confirmations and signs, at a broker that keeps the session as MQTT has it."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.contract import COMMAND_ID_PROPERTY, COMMAND_POSITION_PROPERTY, COMMAND_REPEAT_PROPERTY
from bridge.contract.commands import CommandPosition
from bridge.contract.tagged_positions import PositionTags
from bridge.mqtt.types import (
    DISCONNECT_TAKEN_OVER,
    Connected,
    Disconnected,
    Message,
    PublishProperties,
    Subscription,
)
from bridge.protocols.commands import CommandOutcome, answer_to, read_device_command
from bridge.protocols.device_session import DeviceRequest, DeviceSession, SessionContext
from bridge.settings import Settings
from bridge.settings.fetch import Status
from bridge.settings.mqtt import MqttSettings

TAGS = PositionTags(b"s" * 32, 3)
STATUS = Status("devices/d/status", b"online", b"offline")


def position(number: int) -> str:
    return TAGS.tagged(CommandPosition(7, number, -1), "d")


def settings(**push: Any) -> Settings:
    return Settings(
        push={"presence": {"rules": [{"filter": "devices/+device/status"}]}} | push,
        http={"commands": {"topics": ["devices/{device}/commands"], "absent_after": "30s"}},
    )


class Broker:
    """Keeps one persistent session, and everything that is published."""

    def __init__(self, *, sets_dup: bool = True, clean: bool = False) -> None:
        self.sets_dup = sets_dup  # some do not after an orderly end of the connection
        self.clean = clean
        self.queue: list[tuple[int, bool]] = []  # number, and whether push repeats it
        self.sent: dict[int, tuple[int, bool]] = {}  # by packet identifier
        self.redeliver: list[tuple[int, bool]] = []
        self.session = False
        self.link: Link | None = None
        self.published: list[tuple[str, bytes]] = []
        self.reason = 0
        self.mids = itertools.count(1)

    def connect(self, session: DeviceSession) -> None:
        """Accept a connection; an earlier one of this client id ends."""
        if self.link is not None:
            self.link.lose(Disconnected(1, "taken over", DISCONNECT_TAKEN_OVER))
        self.link = cast("Link", session.link)
        present, self.session = self.session, not self.clean
        if self.clean:
            self.queue, self.sent, self.redeliver = [], {}, []
        session.on_connected(Connected(1, present))
        session.on_subscribed([1])
        self.pump()

    def lost(self, link: Link) -> None:
        """A connection ended: what was not acknowledged is sent again, first, and marked as MQTT has it."""
        if self.link is link:
            self.redeliver = [*self.sent.values(), *self.redeliver]
            self.sent, self.link = {}, None

    def push(self, number: int, repeat: bool = False) -> None:
        self.queue.append((number, repeat))
        self.pump()

    def pump(self) -> None:
        while self.link is not None and len(self.sent) < self.link.receive_maximum and (self.redeliver or self.queue):
            dup = bool(self.redeliver) and self.sets_dup
            number, repeat = (self.redeliver or self.queue).pop(0)
            mid = next(self.mids)
            self.sent[mid] = (number, repeat)
            self.link.handler.on_message(command(number, repeat, mid, dup=dup))


def command(number: int, repeat: bool = False, mid: int = 1, *, dup: bool = False) -> Message:
    user = [(COMMAND_ID_PROPERTY, f"id-{number}"), (COMMAND_POSITION_PROPERTY, position(number))]
    if repeat:
        user.append((COMMAND_REPEAT_PROPERTY, "1"))
    properties = PublishProperties(user=tuple(user), response_topic="not/used", correlation_data=b"neither")
    return Message("devices/d/commands", b"%d" % number, 1, False, dup, mid, properties)


class Link:
    """The part of a link that a session uses; what it publishes is confirmed at once."""

    epoch, unconfirmed, paused, client_id = 1, 0, False, "c"

    def __init__(self, broker: Broker, handler: DeviceSession, receive_maximum: int) -> None:
        self.broker, self.handler = broker, handler
        self.settings, self.receive_maximum = MqttSettings(), receive_maximum
        self.closed = ""

    def publish(self, topic: str, payload: bytes, *, confirmed: Callable[[int], None] | None = None, **_: Any) -> None:
        self.broker.published.append((topic, payload))
        if confirmed is not None and not self.closed:
            confirmed(self.broker.reason)

    def subscribe(self, subscriptions: list[Subscription]) -> None:
        self.subscribed = [one.filter for one in subscriptions]

    def acknowledge(self, mids: list[int], _epoch: int) -> None:
        if not self.closed:
            for mid in mids:
                del self.broker.sent[mid]
            self.broker.pump()

    def abandon(self) -> None:
        pass

    def lose(self, event: Disconnected) -> None:
        self.closed = "lost"
        self.broker.lost(self)
        self.handler.on_disconnected(event)

    def drop(self, _why: str) -> None:
        self.closed = self.closed or "dropped"
        self.broker.lost(self)

    def disconnect(self) -> None:
        self.closed = self.closed or "left"
        self.broker.lost(self)


class Context(SessionContext):
    def link(self, device: str, status: Status, handler: Any) -> Any:
        return Link(cast("Broker", self.poller), handler, 4)


class World:
    def __init__(self, *, sets_dup: bool = True, **push: Any) -> None:
        self.now = 0.0
        self.broker = Broker(sets_dup=sets_dup, clean=push.get("confirm") == "device")
        self.settings = settings(**push)
        self.given: deque[str] = deque(maxlen=16)
        self.session = self.process()

    def process(self, *, same: bool = False) -> DeviceSession:
        """A process, or the ``same`` one, in which the device has a session from now on."""
        self.given = self.given if same else deque(maxlen=16)
        fetch = self.settings.http.commands
        context = Context(self.settings, fetch, cast("Any", self.broker), lambda: self.now)
        self.session = DeviceSession("d", STATUS, context, self.given)
        self.broker.connect(self.session)
        return self.session

    def fetch(self, after: int | None = None, wait_s: float = 30) -> list[CommandOutcome]:
        found: list[CommandOutcome] = []
        after_text = "" if after is None else position(after)
        self.session.ask(DeviceRequest("d", after_text, found.append, wait_s))
        return found

    def confirm(self, number: int, payload: bytes = b"", *, failed: bool = False) -> list[CommandOutcome]:
        found: list[CommandOutcome] = []
        self.session.ask(
            DeviceRequest("d", position(number), found.append, fetches=False, payload=payload, failed=failed)
        )
        return found

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, max(self.now + 0.01, self.session.tick(self.now)))
        self.session.tick(self.now)

    @property
    def signs(self) -> list[bytes]:
        return [payload for topic, payload in self.broker.published if topic == STATUS.topic]

    @property
    def answers(self) -> list[tuple[str, bytes]]:
        return [one for one in self.broker.published if one[0] != STATUS.topic]


def number_of(found: list[CommandOutcome]) -> tuple[int, bool] | None:
    if not found or found[0].command is None:
        return None
    return int(found[0].command.payload), found[0].command.repeat


def test_the_next_command_comes_when_the_device_names_the_one_that_it_has_had() -> None:
    world = World()
    waiting = world.fetch()
    assert waiting == []
    world.broker.push(1)
    world.broker.push(2)
    assert number_of(waiting) == (1, False)
    assert number_of(world.fetch()) == (1, True)  # not confirmed
    assert number_of(world.fetch(after=1)) == (2, False)
    assert world.fetch(after=2) == []
    assert world.broker.sent == {}


def test_a_confirmation_is_the_answer_that_push_waits_for() -> None:
    world = World(confirm="device", answers={"topic": "own/answers"})
    world.broker.push(1)
    assert number_of(world.fetch()) == (1, False)
    assert world.confirm(1, b"done") == [CommandOutcome(confirmed=True)]
    assert world.answers == [("own/answers/0/3", b"done")]
    assert world.confirm(1, b"done") == [CommandOutcome(confirmed=True)]  # its first answer was lost
    assert len(world.answers) == 1
    # Another process had it. Its position proves what it answers.
    assert world.confirm(9, b"other") == [CommandOutcome(confirmed=True)]
    assert world.answers[1:] == [("own/answers/0/3", b"other")]


def test_without_answers_a_position_that_the_broker_does_not_send_again_is_unknown() -> None:
    world = World()
    unknown = world.confirm(9)
    assert unknown == []
    world.wait(6)
    assert unknown == [CommandOutcome()]


@pytest.mark.parametrize("reason", [0x10, 0x87])
def test_an_answer_that_reaches_no_push_is_not_confirmed_and_the_command_stays(reason: int) -> None:
    world = World(confirm="device")
    world.broker.push(1)
    assert number_of(world.fetch()) == (1, False)
    world.broker.reason = reason
    assert world.confirm(1)[0].unavailable
    world.broker.reason = 0
    assert number_of(world.fetch()) == (1, True)
    assert world.confirm(1) == [CommandOutcome(confirmed=True)]


def test_repeats_that_come_while_the_device_works_are_confirmed_with_the_command() -> None:
    world = World(confirm="device")
    world.broker.push(1)
    world.broker.push(1, repeat=True)
    world.broker.push(1, repeat=True)
    assert number_of(world.fetch()) == (1, False)
    assert world.confirm(1, b"done") == [CommandOutcome(confirmed=True)]
    assert world.broker.sent == {}
    assert len(world.answers) == 1
    world.broker.push(1, repeat=True)  # the answer was lost: push needs another one
    assert number_of(world.fetch()) == (1, True)
    assert world.confirm(1, b"done") == [CommandOutcome(confirmed=True)]
    assert len(world.answers) == 2


def test_a_newer_request_ends_the_older_one_here_and_at_another_process() -> None:
    world = World()
    first = world.fetch()
    second = world.fetch()
    assert first == [CommandOutcome(superseded=True)]
    former = world.session
    world.process()
    assert second == [CommandOutcome(superseded=True)]
    assert former.ended
    world.wait(1)
    world.broker.push(1)
    assert number_of(world.fetch()) == (1, False)


def test_what_the_device_had_from_a_killed_process_is_confirmed_at_the_next_one() -> None:
    world = World(confirm="device")
    world.broker.push(1)
    assert number_of(world.fetch()) == (1, False)
    world.session.link.drop("killed")
    world.process()
    assert world.confirm(1, b"done") == [CommandOutcome(confirmed=True)]
    world.broker.push(2)
    assert number_of(world.fetch()) == (2, False)
    world.session.link.drop("killed")
    world.process()
    assert world.fetch(after=2) == []
    assert world.fetch(after=2) == []
    assert [payload for _, payload in world.answers] == [b"done", b""]


def test_what_the_broker_keeps_for_the_next_process_is_confirmed_there() -> None:
    world = World()
    for number in (1, 2, 3):
        world.broker.push(number)
    assert number_of(world.fetch()) == (1, False)
    world.session.link.drop("killed")
    world.process()
    assert number_of(world.fetch(after=1)) == (2, True)  # the former process may have given it
    world.session.link.drop("killed")
    world.process()
    assert world.confirm(2) == [CommandOutcome(confirmed=True)]
    assert number_of(world.fetch()) == (3, True)
    assert world.answers == []


@pytest.mark.parametrize("late", [False, True])
def test_what_a_broker_that_died_sends_again_is_marked_though_it_says_nothing(late: bool) -> None:
    world = World(sets_dup=False)
    for number in (1, 2, 3):
        world.broker.push(number)
    assert number_of(world.fetch()) == (1, False)
    assert number_of(world.fetch(after=1)) == (2, False)
    world.broker.sent = {90: (1, False), **world.broker.sent}  # it has lost the PUBACK
    cast("Link", world.session.link).lose(Disconnected(1, "killed"))
    kept, world.broker.redeliver = world.broker.redeliver, [] if late else world.broker.redeliver
    world.process(same=True)
    if late:
        world.wait(1)
        world.broker.redeliver = kept
        world.broker.pump()
    assert number_of(world.fetch()) == (1, True)
    assert number_of(world.fetch(after=1)) == (2, True)
    assert number_of(world.fetch(after=2)) == (3, False)


def test_signs_are_given_when_nothing_waits_for_the_device() -> None:
    world = World()
    world.fetch()
    assert world.signs == [b"offline"]  # a new session: what was sent to an earlier one is lost
    world.wait(0.1)
    assert world.signs == [b"offline"]
    world.wait(0.2)
    assert world.signs == [b"offline", b"online"]
    world.broker.push(1)
    world.broker.push(2)
    world.wait(20)
    assert number_of(world.fetch(after=1)) == (2, False)
    world.wait(20)
    assert world.signs == [b"offline", b"online"]  # the device has not confirmed the second one
    world.fetch(after=2)
    world.wait(1)
    assert world.signs == [b"offline", b"online", b"online"]
    world.wait(29)
    world.wait(29)
    assert not world.session.ended
    world.wait(2)
    assert world.signs[-1] == b"offline"
    assert world.session.ended
    world.session.close()
    assert cast("Link", world.session.link).closed == "left"


def test_a_session_that_was_kept_gives_no_absence_and_first_what_was_queued() -> None:
    world = World()
    world.session.link.drop("killed")
    world.broker.push(1)
    world.process()
    world.wait(1)
    assert world.signs == [b"offline"]
    assert number_of(world.fetch()) == (1, True)  # an earlier session may have given it
    world.fetch(after=1)
    world.wait(1)
    assert world.signs == [b"offline", b"online"]


def test_a_request_while_the_session_leaves_keeps_it() -> None:
    world = World()
    world.wait(1)
    cast("Link", world.session.link).publish = lambda *a, **k: None  # type: ignore[method-assign]
    world.wait(30)
    del cast("Link", world.session.link).publish
    assert not world.session.ended
    world.fetch()
    world.wait(10)
    assert not world.session.ended
    assert world.signs == [b"offline", b"online", b"online"]


def test_a_broker_that_refuses_or_does_not_answer_is_not_an_empty_answer() -> None:
    world = World()
    world.session.ready = False
    silent = world.fetch(wait_s=5)
    world.wait(6)
    assert silent[0].unavailable
    refused = world.fetch()
    world.session.on_subscribed([0x87])
    assert refused[0].unavailable
    assert world.session.ended


@pytest.mark.parametrize("topic", ["devices/d/commands/{}", "devices/d/commands/{}/repeat"])
def test_a_command_without_properties_has_its_position_in_the_topic(topic: str) -> None:
    push = settings(position_in="topic", confirm="device").push
    message = Message(topic.format(position(4).replace(".", "/")), b"x", 1, False, False, 1, None)
    found = read_device_command(message, push)
    assert found is not None
    assert (found.position, found.topic, found.repeat) == (position(4), "devices/d/commands", topic.endswith("repeat"))
    levels = position(4).replace(".", "/")
    assert answer_to(position(4), push, failed=False, mqtt5=False) == (f"pulsebridge/answers/{levels}", None)
    assert answer_to(position(4), push, failed=True, mqtt5=False)[0] == f"pulsebridge/answers/{levels}/failed"


def test_a_message_of_another_client_is_left_out() -> None:
    world = World()
    waiting = world.fetch()
    plain = Message("devices/d/commands", b"not of push", 1, False, False, 77, None)
    world.broker.sent[77] = (0, False)
    world.session.on_message(plain)
    assert 77 not in world.broker.sent
    assert waiting == []


STEPS = st.lists(
    st.sampled_from(["push", "push", "push", "fetch", "next", "next", "next", "confirm", "lose", "kill", "wait"]),
    max_size=60,
)


@given(steps=STEPS, answers=st.booleans())
def test_in_any_order_of_events_nothing_is_lost_reordered_or_repeated_unmarked(steps: list[str], answers: bool) -> None:
    world = World(confirm="device" if answers else "broker")
    pushed, had, confirmed = 0, [], set()
    seen: list[int] = []

    def note(found: list[CommandOutcome], *, lost: bool = False) -> None:
        number = number_of(found)
        if number is None or lost:
            return
        assert number[1] or number[0] not in seen, "a repeat without a mark"
        if number[0] not in seen:
            seen.append(number[0])
        had.append(number[0])

    for step in [*steps, *["next"] * 40]:
        if step == "push" and (not answers or pushed == len(confirmed)):
            world.broker.push(pushed)
            pushed += 1
        elif step == "fetch":
            note(world.fetch())
        elif step == "next":
            if had:
                confirmed.add(had[-1])
            note(world.fetch(after=had[-1] if had else None))
        elif step == "confirm" and had:
            confirmed.add(had[-1])
            world.confirm(had[-1])
        elif step == "lose":
            note(world.fetch(), lost=True)  # the device never had the answer
        elif step == "kill":
            world.session.link.drop("killed")
            world.process()
            if answers and pushed > len(confirmed):
                world.broker.push(pushed - 1, repeat=True)  # push has the absence, and the sign of life
        elif step == "wait":
            world.wait(3)
        if answers:
            assert len(world.answers) <= len(confirmed) + steps.count("kill"), "answered, and not confirmed"
        else:
            kept = [n for n, _ in [*world.broker.sent.values(), *world.broker.redeliver, *world.broker.queue]]
            assert set(range(pushed)) - set(kept) <= confirmed, "acknowledged, and not confirmed"
    assert seen == list(range(pushed))
