"""Broadcasts to groups: random events in any order, and single steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.contract import Receipt
from bridge.contract.commands import (
    BEFORE_ALL,
    Command,
    CommandPosition,
    broadcaster,
    command_problem,
    decode_command,
    encode_command,
)
from bridge.contract.cursors import ids_key
from bridge.contract.groups import (
    GroupCommand,
    broadcast_of,
    decode_group_command,
    encode_group_command,
    entry_of,
)
from bridge.contract.tagged_positions import PositionTags
from bridge.mqtt.types import Message, PublishProperties
from bridge.push.actions import Ack, Push, StoreCursor, StoreReceipt
from bridge.push.command import Answer, LateAnswers, TrackedCommand
from bridge.push.delivery import NO_SUBSCRIBERS
from bridge.push.device_protocol import outgoing, parse_answer
from bridge.push.groups.owner import _device_of
from bridge.push.partition import Partition
from bridge.push.states import Mode
from bridge.settings import PushSettings
from tests.simulation.broadcast_world import BroadcastWorld
from tests.simulation.push_world import SECOND
from tests.simulation.scenarios import CHANGES, DEVICE, GROUP, LINKS, MOVES
from tests.support.push_limits import Limits

EVENTS: Final = (*MOVES, *GROUP, *GROUP)


def play(
    limits: Limits,
    poison_every: int,
    played: list[tuple[str, int]],
    *,
    finish: bool = True,
    links: tuple[str, ...] = ("",),
    elsewhere: bool = False,
) -> None:
    world = BroadcastWorld(limits, poison_every=poison_every, links=links, elsewhere=elsewhere)
    world.connect_all()
    for event, choice in played:
        getattr(world, event)(choice)
    if finish:
        world.finish()


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 1000)), max_size=150),
    st.sampled_from(CHANGES),
    st.sampled_from([0, 0, 5]),
    st.sampled_from(LINKS),
    st.booleans(),
)
def test_no_walk_with_broadcasts_loses_reorders_or_repeats_unmarked(
    played: list[tuple[str, int]],
    changes: dict[str, int],
    poison_every: int,
    links: tuple[str, ...],
    elsewhere: bool,
) -> None:
    limits = replace(DEVICE, **changes)  # type: ignore[arg-type]
    play(limits, poison_every, played, links=links, elsewhere=elsewhere)


# --- single steps ---

NOW: Final = 1_000 * SECOND
LIMITS: Final = Limits(answers=True, answer_timeout_us=10 * SECOND, retry_min_us=SECOND, pending=4)
GROUP_COMMAND: Final = GroupCommand("update", "presses", "to/{device}", b"payload", broadcast=True)
PLACE: Final = CommandPosition(5, 1, -1)
BEFORE: Final = CommandPosition(5, 0, -1)


def position(number: int) -> CommandPosition:
    return CommandPosition(7, number, -1)


def entry(device: str = "d", place: CommandPosition = PLACE) -> Command:
    return entry_of(GROUP_COMMAND, device, place, 7, "")


def the_broadcast(link: str = "", place: CommandPosition = PLACE, after: CommandPosition = BEFORE) -> Command:
    return broadcast_of(GROUP_COMMAND, link, place, after, 7, "groups/{group}/commands")


def a_core(limits: Limits = LIMITS, links: tuple[str, ...] = ("",)) -> Partition:
    core = Partition(3, limits.nested(), {}, None, now_us=NOW, links=links)
    core.take(NOW)
    for link in links:
        core.link_up(link)
    return core


def pushes(core: Partition, now: int = NOW) -> list[Push]:
    return [one for one in core.take(now) if isinstance(one, Push)]


def ended(core: Partition, name: str = "d") -> Receipt:
    """Have everything stored, and return the one receipt."""
    rows = list[StoreReceipt]()
    for _ in range(3):
        for one in core.take(NOW):
            if isinstance(one, StoreCursor):
                core.cursor_stored(name)
            elif isinstance(one, StoreReceipt):
                rows.append(one)
    (row,) = rows
    core.settlement.receipt_stored(row.position)
    assert core.take(NOW) == [Ack(row.position)]
    assert core.settled
    return row.receipt


def test_an_entry_waits_for_the_answer_to_its_broadcast_and_is_sent_marked_if_none_comes() -> None:
    core = a_core()
    core.arrived(position(1), entry(), NOW)
    core.arrived(position(2), Command("own", "d", "t", b""), NOW)
    assert pushes(core) == []
    now = NOW
    while not (found := pushes(core, now)):
        due = core.next_time_us()
        assert due is not None
        assert due <= NOW + 10 * SECOND
        now = due
        core.tick(now)
    assert now == NOW + 10 * SECOND
    assert [(one.command.command_id, one.repeat) for one in found] == [(entry().command_id, True)]
    assert core.answered(PLACE, b"late", now, failed=False, device="d"), "in flight it is settled as well"
    core.take(now)
    core.cursor_stored("d")
    assert [one.command.command_id for one in pushes(core, now)] == ["own"]


@pytest.mark.parametrize("early", [True, False])
def test_an_answer_to_a_broadcast_settles_the_entry_without_a_push(early: bool) -> None:
    core = a_core()
    if not early:
        core.arrived(position(1), entry(), NOW)
    assert core.answered(PLACE, b"done", NOW, failed=False, device="d") is not early
    if early:
        core.arrived(position(1), entry(), NOW)
    receipt = ended(core)
    assert (receipt.state, receipt.attempts, receipt.answer) == ("answered", 1, b"done")
    assert (receipt.device, receipt.group_command_id) == ("d", "update")
    assert not core.answered(PLACE, b"again", NOW, failed=False, device="d")


def test_an_answer_settles_no_other_entry() -> None:
    core = a_core()
    core.arrived(position(1), entry(), NOW)
    other = CommandPosition(5, 2, -1)
    core.arrived(position(2), replace(entry("e"), ref=replace(entry().ref, broadcast=False)), NOW)  # type: ignore[type-var]
    assert [one.command.device for one in pushes(core)] == ["e"]
    assert not core.answered(PLACE, b"", NOW, failed=False, device="e"), "it was not broadcast"
    assert not core.answered(other, b"", NOW, failed=False, device="e")
    assert not core.answered(other, b"", NOW, failed=False, device="d")
    assert core.take(NOW) == []


def test_a_device_that_failed_gets_its_own_copy_after_the_backoff() -> None:
    core = a_core()
    core.arrived(position(1), entry(), NOW)
    core.take(NOW)
    assert core.answered(PLACE, b"", NOW, failed=True, device="d")
    assert not core.answered(PLACE, b"", NOW, failed=True, device="d"), "it is about to be sent"
    assert pushes(core) == []
    core.tick(NOW + SECOND)
    (push,) = pushes(core, NOW + SECOND)
    assert push.repeat


def test_entries_wait_for_a_shorter_time_in_a_full_partition_and_longer_after_a_reconnect() -> None:
    core = a_core()
    for number in range(4):
        core.arrived(position(number), entry(f"d{number}"), NOW)
    core.take(NOW)
    core.tick(NOW + 2 * SECOND)
    assert len(pushes(core, NOW + 2 * SECOND)) == 4
    core = a_core()
    core.arrived(position(1), entry(), NOW)
    core.link_down(NOW + 9 * SECOND)
    core.take(NOW + 12 * SECOND)
    core.link_up()
    core.tick(NOW + 20 * SECOND)
    assert pushes(core, NOW + 20 * SECOND) == []
    core.tick(NOW + 22 * SECOND)
    assert len(pushes(core, NOW + 22 * SECOND)) == 1


def test_with_the_puback_as_confirmation_no_entry_waits() -> None:
    core = a_core(replace(LIMITS, answers=False))
    core.arrived(position(1), entry(), NOW)
    assert len(pushes(core)) == 1


@pytest.mark.parametrize(("reason", "why"), [(0, ""), (NO_SUBSCRIBERS, "no client is subscribed")])
def test_a_broadcast_is_settled_by_its_puback_at_the_broker_that_it_names(reason: int, why: str) -> None:
    core = a_core(links=("a", "b"))
    core.arrived(position(1), the_broadcast("b"), NOW)
    (push,) = pushes(core)
    assert (push.link, push.repeat) == ("b", False)
    core.confirmed(push.number, reason, NOW)
    receipt = ended(core, broadcaster("presses", "b"))
    assert (receipt.state, receipt.reason) == ("broadcast", why)
    assert (receipt.command_id, receipt.device, receipt.group) == ("update", "", "presses")


def test_a_broadcast_is_never_parked_and_given_up_without_a_dead_letter() -> None:
    core = a_core(replace(LIMITS, attempts=5))
    name, now = broadcaster("presses", ""), NOW
    core.arrived(position(1), the_broadcast(), NOW)
    for _ in range(5):
        core.gone(name, now, now)
        core.alive(name, now)
        (push,) = pushes(core, now)
        core.confirmed(push.number, 0x97, now)
        core.tick(now := now + 30 * SECOND)
    (row,) = core.take(now)
    assert isinstance(row, StoreReceipt)
    assert row.receipt.state == "broadcast"
    assert row.receipt.reason.startswith("rejected: given up after 5 attempts")


def test_h36_no_answer_or_sign_of_life_in_the_name_of_a_broadcast_counts() -> None:
    core = a_core(links=("a", "b"))
    name = broadcaster("presses", "b")
    core.arrived(position(1), the_broadcast("b"), NOW)
    (push,) = pushes(core)
    assert not core.answered(PLACE, b"", NOW, "a", failed=False, device=name)
    core.alive(name, NOW, "a")
    assert core.take(NOW) == []
    assert core.devices.awake[name].link == push.link == "b"
    assert not core.devices.knows(name), "no request to resume for it is served"
    assert _device_of(name) is None
    assert _device_of(ids_key(name)) is None
    assert command_problem(replace(the_broadcast("b"), ref=None)) is not None, "no device has such a name"


def test_h36_the_answer_to_a_broadcast_settles_no_command_that_needs_a_tag() -> None:
    core = a_core(replace(LIMITS, park_after=1))
    core.arrived(position(1), Command("own", "d", "t", b""), NOW)
    (push,) = pushes(core)
    assert not core.answered(position(1), b"forged", NOW, failed=False, device="e")
    core.confirmed(push.number, 0, NOW)
    core.tick(now := NOW + 10 * SECOND)
    assert core.devices.mode_of("d") is Mode.PARKED
    assert not core.answered(position(1), b"forged", now, failed=False, device="e")
    assert core.answered(position(1), b"true", now, failed=False)


def test_answers_that_come_early_are_bounded_and_a_request_to_resume_forgets_them() -> None:
    late = LateAnswers(answers=True)
    for number in range(100_000):
        late.give_broadcast(f"d{number}", PLACE, Answer(b"x" * 1000, 1000, NOW))
    tracked = [TrackedCommand(position(1), entry(f"d{number}")) for number in (0, 99_998, 99_999)]
    late.forget_device("d99998")
    assert [late.settle(one) for one in tracked] == [False, False, True]
    assert not late.settle(tracked[2])


# --- on the wire ---

TAGS: Final = PositionTags(b"secret", 4)
DEVICE_SETTINGS: Final = PushSettings(confirm="device")
TOPIC_SETTINGS: Final = PushSettings(confirm="device", position_in="topic")


def sent(command: Command, settings: PushSettings = DEVICE_SETTINGS, *, repeat: bool = False) -> tuple[str, Any]:
    return outgoing(Push(1, position(1), command, repeat), settings, TAGS, 4, 0)


def test_a_broadcast_and_the_copy_of_a_member_name_the_group_command() -> None:
    topic, properties = sent(the_broadcast())
    user = dict(properties.user)
    assert topic == "groups/presses/commands"
    assert (user["group"], user["group-position"], user["after"]) == ("presses", "0.0.5.1.-1", "0.0.5.0.-1")
    assert user["command-id"] == "update"
    assert "position" not in user, "a device with an offset of its own does not store it"
    assert (properties.response_topic, properties.correlation_data) == ("pulsebridge/answers/group", b"0.0.5.1.-1")
    assert dict(sent(the_broadcast(after=BEFORE_ALL))[1].user)["after"] == "none"

    topic, properties = sent(entry(), repeat=True)
    user = dict(properties.user)
    assert topic == "to/d"
    assert (user["group"], user["group-position"], user["repeat"]) == ("presses", "0.0.5.1.-1", "1")
    assert user["position"] == TAGS.tagged(position(1), "d")
    assert properties.response_topic == "pulsebridge/answers/0/4"

    tagged = TAGS.tagged(position(1), "d").replace(".", "/")
    assert sent(the_broadcast(), TOPIC_SETTINGS)[0] == "groups/presses/commands/0/0/5/1/-1/0/0/5/0/-1"
    first = sent(the_broadcast(after=BEFORE_ALL), TOPIC_SETTINGS, repeat=True)[0]
    assert first == "groups/presses/commands/0/0/5/1/-1/none/repeat"
    assert sent(entry(), TOPIC_SETTINGS, repeat=True)[0] == f"to/d/{tagged}/repeat/group/0/0/5/1/-1"


def test_h28_the_positions_of_group_commands_begin_with_the_generation() -> None:
    tags = PositionTags(b"secret", 4, 2)
    for one in (the_broadcast(), entry()):
        user = dict(outgoing(Push(1, position(1), one, False), DEVICE_SETTINGS, tags, 4, 0)[1].user)
        assert user["group-position"] == "2.0.5.1.-1"
        assert user.get("after", "2.0.5.0.-1") == "2.0.5.0.-1"
    for where, counts in ((b"2.0.5.1.-1", True), (b"0.0.5.1.-1", False)):  # of the same number in the former cluster
        answer = Message("a/group/d", b"", 1, False, False, 1, PublishProperties(correlation_data=where))
        assert (parse_answer(answer, "a", 4, 2) is not None) == counts


def test_the_answer_to_a_broadcast_names_device_and_group_command_in_either_way() -> None:
    def parsed(topic: str, data: bytes | None = None, *user: tuple[str, str]) -> tuple[object, ...] | None:
        properties = None if data is None else PublishProperties(user=user, correlation_data=data)
        found = parse_answer(Message(topic, b"ok", 1, False, False, 1, properties), "a", 4)
        return None if found is None else (found.device, found.position, found.failed)

    where = b"0.0.5.1.-1"
    assert parsed("a/group/d", where) == parsed("a/group/d/0/0/5/1/-1") == ("d", PLACE, False)
    assert parsed("a/group/hall/7", where) == parsed("a/group/hall/7/0/0/5/1/-1") == ("hall/7", PLACE, False)
    for failed in (
        parsed("a/group/d", where, ("failed", "1")),
        parsed("a/group/d/failed", where),
        parsed("a/group/d/0/0/5/1/-1/failed"),
    ):
        assert failed == ("d", PLACE, True)
    for nothing in ("a/group", "a/group/", "a/group/d", "a/group/d/0/0/5/1", "a/group//0/0/5/1/x"):
        assert parsed(nothing) is None
    assert parsed("a/group/d", b"\xff" * 60_000) is None
    assert parsed("a/group/d", b"nonsense") is None
    assert parsed("a/group/", where) is None


def test_commands_of_a_broadcast_come_back_from_pulsar_as_they_were() -> None:
    for command in (entry(), the_broadcast("b"), the_broadcast(after=BEFORE_ALL)):
        assert decode_command(encode_command(command), b"") == command
    assert decode_group_command(encode_group_command(GROUP_COMMAND), b"payload") == GROUP_COMMAND
