"""Devices at several MQTT brokers: where each gets its commands, and what a broker that it has left may still cause."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.contract.commands import Command, CommandPosition
from bridge.push.actions import AnswerRequest, Pull, Push, ResumeRequest, StoreCursor, StoreReceipt, StoreSegment
from bridge.push.cursor import Cursor
from bridge.push.partition import Partition
from bridge.push.probes import Presence
from bridge.push.states import Mode
from tests.support.push_limits import Limits

SECOND = 1_000_000
NOW = 1_000 * SECOND
DEVICE = Limits(answers=True, answer_timeout_us=SECOND, park_after=2, probe_min_us=2 * SECOND, coalesce_us=0)
BROKER = replace(DEVICE, answers=False)


class Two:
    """A partition with the brokers a and b, whose Pulsar stores all at once."""

    def __init__(self, limits: Limits = DEVICE, cursors: dict[str, Cursor] | None = None) -> None:
        self.core = Partition(0, limits.nested(), cursors or {}, None, links=("a", "b"), now_us=NOW)
        self.first = 0 if cursors is None else 10  # of the next owner, what comes after that of the last one
        self.now = NOW
        self.commands: dict[CommandPosition, Command] = {}
        self.stored: dict[str, bytes] = {}
        self.states: dict[str, str] = {}
        self.answers: list[AnswerRequest] = []
        for link in ("a", "b"):
            self.core.link_up(link, reports_absence=True)
        self.pushes()

    def command(self, device: str, *, link: str = "") -> None:
        number = self.first + len(self.commands)
        position = CommandPosition(1, number, -1)
        self.commands[position] = Command(f"{device}-{number}", device, "t", b"x", link=link)
        self.core.arrived(position, self.commands[position], self.now)

    def pushes(self, later_us: int = 0) -> list[Push]:
        """Let time pass, and return what is pushed; each is shown as written to its connection."""
        self.now += later_us
        self.core.tick(self.now)
        found = []
        while actions := self.core.take(self.now):
            for action in actions:
                if isinstance(action, Push):
                    self.core.links[action.link].sent(action.number, self.now)
                    found.append(action)
                elif isinstance(action, StoreCursor):
                    self.stored |= dict(action.records)
                    self.core.cursor_stored(action.device)
                elif isinstance(action, StoreReceipt):
                    self.states[action.receipt.command_id] = action.receipt.state
                    self.core.settlement.receipt_stored(action.position)
                elif isinstance(action, StoreSegment):
                    self.core.segment_stored(action.parked)
                elif isinstance(action, Pull):
                    for position in action.positions:
                        self.core.pulled(action.device, action.epoch, position, self.commands[position], self.now)
                elif isinstance(action, AnswerRequest):
                    self.answers.append(action)
        return found

    def push(self, later_us: int = 0) -> Push:
        (only,) = self.pushes(later_us)
        return only

    def answer(self, push: Push, link: str) -> bool:
        return self.core.answered(push.position, b"done", self.now, link, failed=False)


def where(pushes: list[Push]) -> list[tuple[str, str, bool]]:
    return [(one.command.command_id, one.link, one.repeat) for one in pushes]


def test_a_device_that_was_never_seen_gets_commands_where_they_say_else_at_the_first_broker() -> None:
    two = Two()
    two.command("d")
    two.command("e", link="b")
    two.command("f", link="unknown")
    two.command("g", link="b")
    two.core.alive("g", NOW, "a")
    assert sorted(where(two.pushes())) == [
        ("d-0", "a", False),
        ("e-1", "b", False),
        ("f-2", "a", False),
        ("g-3", "a", False),
    ]


def test_a_device_that_moves_in_mid_command_gets_it_at_the_other_broker_marked() -> None:
    two = Two()
    two.core.alive("d", NOW, "a")
    for _ in range(2):
        two.command("d")
    first = two.push()
    two.core.alive("d", two.now, "b")
    again = two.push()
    assert where([first, again]) == [("d-0", "a", False), ("d-0", "b", True)]
    two.core.confirmed(first.number, 0, two.now)  # late, from the broker that it left
    assert two.pushes() == []
    assert two.answer(again, "b")
    assert where(two.pushes()) == [("d-1", "b", False)]


@pytest.mark.parametrize("confirmed", [False, True])
def test_a_late_answer_from_the_former_broker_settles_the_command_once_and_moves_nothing(confirmed: bool) -> None:
    two = Two()
    two.core.alive("d", NOW, "a")
    for _ in range(2):
        two.command("d")
    first = two.push()
    if confirmed:
        two.core.confirmed(first.number, 0, two.now)
    two.core.alive("d", two.now, "b")
    again = two.push(SECOND // 10)
    assert two.answer(first, "a")
    following = two.push()
    assert where([following]) == [("d-1", "b", False)]
    assert not two.answer(again, "b")
    assert two.core.places.link_of("d") == "b"
    assert two.states == {"d-0": "answered"}


def test_a_link_that_is_lost_brings_back_what_was_in_flight_there_alone() -> None:
    two = Two()
    for device, link in (("d", "a"), ("e", "b")):
        two.core.alive(device, NOW, link)
        two.command(device)
    at_a, at_b = sorted(two.pushes(), key=lambda push: push.link)
    two.core.link_down(two.now, "a")
    two.command("d")
    assert two.pushes() == []
    assert two.answer(at_b, "b")
    two.core.link_up("a", reports_absence=True)
    assert where(two.pushes()) == [("d-0", "a", True)]
    assert two.states == {"e-1": "answered"}
    assert at_a.link == "a"


def test_h31_a_will_from_a_broker_that_the_device_has_left_parks_nothing() -> None:
    two = Two()
    two.core.alive("d", NOW, "a")
    two.core.alive("d", NOW + 1, "b")
    two.core.gone("d", NOW + 2, NOW + 2, "a")
    two.command("d")
    assert where(two.pushes()) == [("d-0", "b", False)]
    two.core.gone("d", NOW + 3, NOW + 3, "b")
    assert two.core.devices.mode_of("d") is Mode.PARKED
    two.core.alive("d", NOW + 2, "a")  # seen there after its last sign at b, noted before the will came
    assert where(two.pushes()) == [("d-0", "a", True)]


def test_h31_a_retained_message_of_an_old_broker_is_not_newer() -> None:
    presence = Presence()
    assert presence.alive("d", 10, "a", dated=False)
    assert presence.place("d") == ("a", 0)
    assert presence.alive("d", 5, "b"), "a dated sign counts more"
    assert not presence.alive("d", 20, "a", dated=False)
    assert presence.place("d") == ("b", 5)
    assert presence.gone("d", 30, "b")
    assert presence.alive("d", 40, "a", dated=False), "it is at b no more"
    assert presence.place("d") == ("a", 30)
    assert not presence.alive("d", 25, "b"), "seen there before it left"


def test_h26_what_the_former_broker_confirmed_since_the_last_sign_of_life_goes_again() -> None:
    two = Two(BROKER)
    two.core.alive("d", NOW, "a")
    for _ in range(3):
        two.command("d")
    for _ in range(2):
        push = two.push(SECOND)
        two.core.confirmed(push.number, 0, two.now)
    third = two.push(SECOND)
    two.core.alive("d", two.now, "b")
    again = []
    while found := two.pushes(SECOND):
        again += found
        for one in found:
            two.core.confirmed(one.number, 0, two.now)
    assert third.link == "a"
    assert where(again) == [("d-0", "b", True), ("d-1", "b", True), ("d-2", "b", True)]


def test_the_next_owner_finds_a_device_where_the_last_one_saw_it() -> None:
    two = Two()
    two.core.alive("d", NOW, "b")
    two.command("d")
    assert two.answer(two.push(), "b")
    two.pushes()
    after = Two(cursors={"d": Cursor.decode(two.stored["d"], 256)})
    after.core.alive("d", NOW - SECOND, "a")  # what ingest had noted before
    after.command("d")
    assert where(after.pushes()) == [("d-10", "b", False)]
    after.core.alive("d", NOW + SECOND, "a")
    assert where(after.pushes()) == [("d-10", "a", True)]


def test_a_move_is_stored_at_once_for_the_next_owner() -> None:
    two = Two()
    two.core.alive("d", NOW, "a")
    two.command("d")
    assert two.answer(two.push(), "a")
    two.pushes()
    two.core.alive("d", NOW + SECOND, "b")
    two.pushes()
    assert Cursor.decode(two.stored["d"], 256).link == "b"


def test_probes_go_to_one_broker_after_the_other_and_an_answer_shows_where_the_device_is() -> None:
    two = Two()
    two.core.alive("d", NOW, "a")
    two.command("d")
    two.command("d")
    tried = []
    for _ in range(60):
        for push in two.pushes(SECOND):
            tried.append(push.link)
            two.core.confirmed(push.number, 0, two.now)
            if push.link == "b":
                assert two.answer(push, "b")
        if "b" in tried and len(tried) > tried.index("b") + 1:
            break
    assert tried[:4] == ["a", "a", "a", "b"]  # two attempts, and a probe where it was last seen
    assert tried[4] == "b"


def test_h30_a_full_partition_parks_the_commands_of_a_broker_that_is_away_first() -> None:
    two = Two(replace(DEVICE, pending=10))
    for number in range(10):
        two.core.alive(f"a{number}", NOW, "a")
    two.core.alive("b", NOW, "b")
    two.core.link_down(two.now, "a")
    for number in range(9):
        two.command(f"a{number}")
    two.command("b")
    assert [push.command.device for push in two.pushes()] == ["b"]
    assert not two.core.commands.full
    two.command("b")
    two.core.link_up("a", reports_absence=True)
    parked = [f"a{n}" for n in range(9) if two.core.devices.mode_of(f"a{n}") is not Mode.LIVE]
    assert parked
    found = []
    for _ in range(40):
        for push in two.pushes(SECOND // 2):
            two.answer(push, push.link)
            found.append(push.command.device)
    assert {f"a{n}" for n in range(9)} <= set(found)


def test_replays_of_a_broker_that_does_not_confirm_leave_room_for_others() -> None:
    two = Two(replace(DEVICE, replay_window=32, answer_timeout_us=600 * SECOND))
    for device in [f"a{n}" for n in range(20)] + ["b"]:
        link = device[0]
        two.core.alive(device, NOW, link)
        two.core.gone(device, NOW + 1, NOW + 1, link)
        for _ in range(4):
            two.command(device)
    two.pushes()
    for device in [f"a{n}" for n in range(20)]:
        two.core.alive(device, NOW + 2, "a")
    for _ in range(5):
        two.pushes(SECOND // 5)
    two.core.alive("b", NOW + 2, "b")
    got = []
    for _ in range(10):
        for push in two.pushes(SECOND // 5):
            if push.link == "b":
                got.append(push.command.command_id)
                two.answer(push, "b")
    assert len(got) == 4


def test_h27_the_answer_to_a_request_follows_its_device() -> None:
    two = Two()
    two.core.alive("d", NOW, "a")
    two.command("d")
    assert two.answer(two.push(), "a")
    two.pushes()
    request = ResumeRequest("d", "", CommandPosition(1, 0, -1), NOW + SECOND, 1, "a")
    assert two.core.asked(request, two.now) is None
    two.pushes(SECOND)
    two.core.alive("d", two.now, "b")
    two.pushes()
    assert [answer.link for answer in two.answers] == ["a", "b"]
    two.command("d")
    assert two.pushes() == []
    two.core.request_answered(request)
    assert where(two.pushes(SECOND)) == [("d-1", "b", False)]


def test_commands_that_name_different_links_go_to_one_broker_until_the_device_is_seen() -> None:
    two = Two(BROKER)
    two.command("d", link="b")
    first = two.push()
    two.core.confirmed(first.number, 0, two.now)
    two.command("d", link="a")
    second = two.push()
    two.core.confirmed(second.number, 0, two.now)
    two.pushes()
    after = Two(BROKER, {"d": Cursor.decode(two.stored["d"], 256)})
    after.command("d", link="a")
    third = after.push()
    assert where([first, second, third]) == [("d-0", "b", False), ("d-1", "b", False), ("d-10", "b", False)]
    after.commands |= two.commands
    after.core.alive("d", after.now + 1, "a")  # what b took is pending again (H26)
    again = []
    while found := after.pushes(SECOND):
        again += found
        for one in found:
            after.core.confirmed(one.number, 0, after.now)
    assert where(again) == [("d-0", "a", True), ("d-1", "a", True), ("d-10", "a", True)]
