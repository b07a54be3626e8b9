from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bridge.contract import Receipt
from bridge.contract.commands import Command, CommandPosition
from bridge.contract.tagged_positions import PositionTags
from bridge.errors import ContractError
from bridge.mqtt.types import Message, PublishProperties
from bridge.push.actions import Ack, Action, DeadLetter, Push, StoreCursor, StoreReceipt
from bridge.push.device_protocol import answer_filters, check_topic, outgoing, parse_answer
from bridge.push.partition import Partition
from bridge.settings import MqttSettings, PushSettings, Settings
from tests.simulation.push_world import SECOND, PushWorld
from tests.support.push_limits import Limits

NOW = 1_000 * SECOND
LIMITS = Limits(
    retry_min_us=SECOND, retry_max_us=4 * SECOND, answers=True, answer_timeout_us=3 * SECOND, answer_bytes=4
)
EVENTS = (
    "write_command", "write_command", "receive", "receive", "receive", "arrive", "arrive", "puback", "puback",
    "answer", "answer", "store", "store", "store", "read_again", "lose_link", "connect", "connect", "pass_time",
    "crash",
)  # fmt: skip


def steps() -> st.SearchStrategy[list[tuple[str, int]]]:
    return st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 1000)), max_size=150)


def play(world: PushWorld, played: list[tuple[str, int]]) -> None:
    world.connect(0)
    for event, choice in played:
        getattr(world, event)(choice)
    world.finish()


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps(), st.sampled_from([0, 3]), st.integers(1, 3))
def test_h26_no_interleaving_settles_what_no_device_answered(
    played: list[tuple[str, int]], attempts: int, window: int
) -> None:
    play(PushWorld(replace(LIMITS, attempts=attempts, window=window)), played)


def command(number: int, device: str = "d", **more: object) -> Command:
    return replace(Command(f"{device}-{number}", device, f"devices/{device}/commands", b"x"), **more)  # type: ignore[arg-type]


def position(number: int) -> CommandPosition:
    return CommandPosition(7, number, -1)


def a_core(limits: Limits = LIMITS) -> Partition:
    core = Partition(3, limits.nested(), {}, None)
    core.link_up()
    return core


def pushed(core: Partition, now: int = NOW) -> Push:
    (push,) = core.take(now)
    assert isinstance(push, Push)
    return push


def kinds(actions: list[Action]) -> list[type]:
    return [type(action) for action in actions]


def test_the_cursor_waits_for_the_answer_and_the_receipt_has_its_head() -> None:
    core = a_core()
    core.arrived(position(1), command(1), NOW)
    core.confirmed(pushed(core).number, 0, NOW + 5)
    assert core.take(NOW) == []
    assert (core.links[""].in_flight, core.commands.awaited) == (0, 1)
    assert not core.settled
    assert core.answered(position(1), b"123456", NOW + 9, failed=False)
    assert kinds(core.take(NOW)) == [StoreCursor]
    core.cursor_stored("d")
    (row,) = core.take(NOW)
    assert isinstance(row, StoreReceipt)
    receipt = Receipt.decode(row.receipt.encode())
    assert (receipt.state, receipt.answer, receipt.answer_length) == ("answered", b"1234", 6)
    assert (receipt.confirmed_at_us, receipt.answered_at_us) == (NOW + 5, NOW + 9)
    core.settlement.receipt_stored(position(1))
    assert core.take(NOW) == [Ack(position(1))]
    assert not core.answered(position(1), b"again", NOW, failed=False)


def test_an_answer_may_be_faster_than_the_puback() -> None:
    core = a_core()
    core.arrived(position(1), command(1), NOW)
    push = pushed(core)
    assert core.answered(position(1), b"", NOW, failed=False)
    assert kinds(core.take(NOW)) == [StoreCursor]
    core.confirmed(push.number, 0, NOW)
    assert core.take(NOW) == []
    assert core.commands.awaited == 0


def test_without_an_answer_the_command_is_resent_marked_and_no_other_device_waits() -> None:
    core = a_core(replace(LIMITS, window=1))
    core.arrived(position(1), command(1, "silent"), NOW)
    core.arrived(position(2), command(2, "silent"), NOW)
    core.arrived(position(3), command(3, "other"), NOW)
    first = pushed(core)
    core.confirmed(first.number, 0, NOW)
    assert pushed(core).command.device == "other"  # although the link's window is 1
    assert core.next_time_us() == NOW + 3 * SECOND
    core.tick(NOW + 3 * SECOND)
    assert core.next_time_us() == NOW + 4 * SECOND  # the backoff
    core.confirmed(2, 0, NOW)
    assert core.take(NOW + 3 * SECOND) == []
    core.tick(NOW + 4 * SECOND)
    again = pushed(core, NOW + 4 * SECOND)
    assert (again.command.command_id, again.repeat) == ("silent-1", True)
    assert core.answered(position(1), b"late", NOW, failed=False)  # to the first push


@pytest.mark.parametrize("failed", [True, False])
def test_what_fails_too_often_goes_to_the_dead_letters_and_the_next_has_its_turn(failed: bool) -> None:
    core = a_core(replace(LIMITS, attempts=2))
    core.arrived(position(1), command(1), NOW)
    core.arrived(position(2), command(2), NOW)
    now = NOW
    for _ in range(2):
        core.confirmed(pushed(core, now).number, 0, now)
        if failed:
            assert core.answered(position(1), b"", now, failed=True)
        else:
            core.tick(now := now + 3 * SECOND)
        core.tick(now := now + 2 * SECOND) if core.next_time_us() else None
    core.tick(now)
    (letter,) = core.take(now)
    assert isinstance(letter, DeadLetter)
    assert "after 2 attempts" in letter.reason
    core.settlement.dead_letter_stored(position(1))
    actions = core.take(now)
    rows = [a.receipt.state for a in actions if isinstance(a, StoreReceipt)]
    assert rows == ["rejected"]
    core.settlement.receipt_stored(position(1))
    assert [type(a) for a in core.take(now)] == [StoreCursor]
    core.cursor_stored("d")
    assert [a.command.command_id for a in core.take(now) if isinstance(a, Push)] == ["d-2"]


# --- on the wire ---


def answer(topic: str, *user: tuple[str, str], retain: bool = False, correlation: bytes | None = None) -> Message:
    named = PublishProperties(user=user, correlation_data=correlation) if user or correlation else None
    return Message(topic, b"ok", 1, retain, False, 1, named)


TAGS = PositionTags(b"secret", 4)
WHERE = CommandPosition(12, 3, -1)
TAGGED = TAGS.tagged(WHERE, "d")
LEVELS = TAGGED.replace(".", "/")


def test_positions_travel_as_levels_and_come_back() -> None:
    assert re.fullmatch(r"0/4/12/3/-1/[\w-]{16}", LEVELS)
    assert answer_filters("a/b", 4) == ["a/b/0/4/#", "a/b/group/#"]
    found = parse_answer(answer(f"a/b/{LEVELS}"), "a/b", 4)
    assert found is not None
    assert (found.position, found.payload, found.failed) == (WHERE, b"ok", False)
    assert TAGS.proves(found.tag, WHERE, "d")
    named = TAGGED.encode()
    assert parse_answer(answer("a/b/0/4", correlation=named), "a/b", 4) == found
    for failing in (
        answer(f"a/b/{LEVELS}/failed"),
        answer(f"a/b/{LEVELS}", ("failed", "1")),
        answer("a/b/0/4/failed", correlation=named),
        answer("a/b/0/4", ("failed", "1"), correlation=named),
    ):
        found = parse_answer(failing, "a/b", 4)
        assert found is not None
        assert found.failed


@pytest.mark.parametrize(
    "topic",
    ["a/b", "a/b/0/4", "a/b/0/4/12/3", "a/b/0/4/12/3/-1", f"a/b/0/4/12/3/x/{'t' * 16}", f"a/b/0/5/12/3/-1/{'t' * 16}",
     f"a/b/1/4/12/3/-1/{'t' * 16}", f"c/{LEVELS}", f"a/b/{LEVELS}x", f"a/b/{LEVELS}/repeat", f"a/b/{LEVELS}/failed/x",
     f"a/b/0/4/{'9' * 60_000}/3/-1/{'t' * 16}"],
)  # fmt: skip
def test_what_is_no_answer_to_this_partition_is_none(topic: str) -> None:
    assert parse_answer(answer(topic), "a/b", 4) is None
    assert parse_answer(answer(f"a/b/{LEVELS}", retain=True), "a/b", 4) is None


PIECES = b"0 1 4 5 12 -1 -2 +3 999999999999999999 9999999999999999999 tttttttttttttttt ttttttttttttttttt t \xff".split()


@given(st.binary(max_size=120) | st.lists(st.sampled_from(PIECES), min_size=5, max_size=7).map(b".".join))
@example(b"0.4.12.3.-1.tttttttttttttttt")
@example(b"0.5.12.3.-1.tttttttttttttttt")
@example(b"1.4.12.3.-1.tttttttttttttttt")
@example(b"0.4.12.3.-1")
@example(b"")
@example(b"\xff" * 60_000)
@example(b"9" * 60_000)
def test_h36_correlation_data_of_any_bytes_is_a_position_of_this_partition_or_none(named: bytes) -> None:
    found = parse_answer(answer("a/b/0/4", correlation=named), "a/b", 4)
    ours = re.fullmatch(rb"0\.4\.(\d+)\.(\d+)\.(-1|\d+)\.([A-Za-z0-9_-]{16})", named)
    if ours is None:
        assert found is None or b"/" in named
    else:
        assert found is not None
        assert found.position == CommandPosition(*map(int, ours.groups()[:3]))
        assert not TAGS.proves(found.tag, found.position, "d")


def test_devices_of_every_version_can_tell_position_and_repetition() -> None:
    push = Push(1, WHERE, command(1), True)
    topic, five = outgoing(push, PushSettings(confirm="device"), TAGS, 4, 0)
    assert topic == "devices/d/commands"
    assert five.response_topic == "pulsebridge/answers/0/4"
    assert five.correlation_data == TAGGED.encode()
    assert dict(five.user)["position"] == TAGGED
    topic, _ = outgoing(push, PushSettings(confirm="device", position_in="topic"), TAGS, 4, 0)
    assert topic == f"devices/d/commands/{LEVELS}/repeat"
    assert outgoing(push, PushSettings(), TAGS, 4, 0)[1].response_topic is None
    with pytest.raises(ContractError, match="room for the position"):
        check_topic(command(1, mqtt_topic="x" * 65_500), PushSettings(position_in="topic"))


def test_answers_that_no_device_could_give_are_refused_at_load() -> None:
    with pytest.raises(ValueError, match=r"push\.position_in: topic"):
        Settings(mqtt=MqttSettings(protocol="3.1.1"), push=PushSettings(confirm="device"))
    Settings(mqtt=MqttSettings(protocol="3.1.1"), push=PushSettings(confirm="device", position_in="topic"))


def test_a_receipt_of_a_resent_command_is_read() -> None:
    again = Receipt("c~2", "d", "t", "delivered", resend_of="c")
    assert Receipt.decode(again.encode()) == again
