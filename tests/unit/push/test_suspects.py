"""A command at which the MQTT broker closes the connection, or which it never confirms, must not hold the others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.contract.commands import Command, CommandPosition
from bridge.mqtt.refusals import perhaps_for_a_packet
from bridge.mqtt.types import Disconnected
from bridge.push.actions import DeadLetter, Push, StoreReceipt
from bridge.push.flights import SHORT_US
from bridge.push.partition import Partition
from tests.simulation.push_world import SECOND, PushWorld
from tests.support.push_limits import Limits
from tests.unit.push.test_core import EVENTS, play, steps

NOW = 1_000 * SECOND
LIMITS = Limits(retry_min_us=SECOND, retry_max_us=4 * SECOND, puback_timeout_us=60 * SECOND)


class Shell:
    """Sends what a core pushes, on a connection that is there or not."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.core = Partition(3, limits.nested(), {}, None)
        self.now = NOW
        self.dead: list[DeadLetter] = []
        self.rejected: list[tuple[str, str]] = []
        self.core.link_up()

    def arrives(self, *devices: str) -> None:
        for device in devices:
            self.count = getattr(self, "count", 0) + 1
            one = Command(f"{device}-{self.count}", device, f"t/{device}", b"x")
            self.core.arrived(CommandPosition(7, self.count, -1), one, self.now)

    def pushes(self) -> list[Push]:
        """Take what is pushed now; all else is stored at once."""
        found: list[Push] = []
        while actions := self.core.take(self.now):
            for action in actions:
                if isinstance(action, Push):
                    self.core.links[""].sent(action.number, self.now)
                    found.append(action)
                elif isinstance(action, DeadLetter):
                    self.dead.append(action)
                    self.core.settlement.dead_letter_stored(action.position)
                elif isinstance(action, StoreReceipt):
                    if action.receipt.state == "rejected":
                        self.rejected.append((action.receipt.command_id, action.receipt.reason))
                    self.core.settlement.receipt_stored(action.position)
                elif hasattr(action, "device"):
                    self.core.cursor_stored(action.device)  # type: ignore[union-attr]
        return found

    def passes(self, us: int) -> None:
        self.now += us
        self.core.tick(self.now)

    def closes(self, *, closed: bool = True, away: bool = False) -> None:
        self.core.link_down(self.now, closed=closed)
        assert self.pushes() == []
        if away:
            self.core.links[""].broker_unreachable()
        self.core.link_up()

    def confirms(self, push: Push) -> None:
        self.core.confirmed(push.number, 0, self.now)


def only(pushes: list[Push]) -> Push:
    assert len(pushes) == 1, pushes
    return pushes[0]


def test_what_alone_is_in_flight_at_three_closes_goes_to_the_dead_letters() -> None:
    shell = Shell()
    shell.arrives("bad", "bad")
    for turn in range(3):
        push = only(shell.pushes())
        assert (push.command.command_id, push.repeat) == ("bad-1", turn > 0)
        shell.core.links[""].broker_answered()  # something else was taken in between
        shell.closes()
        shell.passes(4 * SECOND)
    following = only(shell.pushes())
    assert [one.position for one in shell.dead] == [CommandPosition(7, 1, -1)]
    assert shell.rejected == [
        ("bad-1", "the MQTT broker closed the connection 3 times when it was sent, and took others")
    ]
    assert (following.command.command_id, following.repeat) == ("bad-2", False)


def test_of_many_in_flight_each_goes_alone_until_it_is_known_which_it_was() -> None:
    shell = Shell()
    shell.arrives("a", "bad", "b")
    assert len(shell.pushes()) == 3
    shell.closes()
    shell.arrives("new")
    pushed: list[str] = []
    while not shell.rejected:
        push = only(shell.pushes())  # never with another
        pushed.append(push.command.device)
        if push.command.device == "bad":
            shell.closes()
        else:
            shell.confirms(push)
        shell.passes(2 * SECOND)
    assert pushed == ["a", "bad", "b", "new", "bad", "bad"]


def test_what_waits_after_a_close_lets_the_others_go() -> None:
    shell = Shell()
    shell.arrives("bad")
    only(shell.pushes())
    shell.closes()
    shell.arrives("a", "b")
    assert [push.command.device for push in shell.pushes()] == ["a", "b"]


@pytest.mark.parametrize("kind", ["lost", "restarted", "later"])
def test_a_good_command_outlasts_any_number_of_brokers_that_die(kind: str) -> None:
    """A silent loss, a broker that is down for a moment, and one that dies when it had the command for long."""
    shell = Shell()
    shell.arrives("good")
    for _ in range(20):
        push = only(shell.pushes())
        shell.core.links[""].broker_answered()
        if kind == "later":
            shell.passes(SHORT_US)
        shell.closes(closed=kind != "lost", away=kind == "restarted")
        shell.passes(30 * SECOND)
    push = only(shell.pushes())
    shell.confirms(push)
    shell.pushes()
    assert not shell.dead
    assert shell.core.settled


def test_a_broker_that_closes_at_everything_loses_no_command() -> None:
    """Such as one of MQTT 3.1.1 that has revoked our rights: after the fix the commands leave."""
    shell = Shell()
    shell.arrives("a", "b")
    for _ in range(100):
        shell.pushes()
        shell.closes()
        shell.passes(4 * SECOND)
    assert not shell.dead
    delivered: list[str] = []
    for _ in range(10):
        for push in shell.pushes():
            shell.confirms(push)
            delivered.append(push.command.device)
        shell.passes(4 * SECOND)
    assert sorted(delivered) == ["a", "b"]


def test_a_command_without_a_confirmation_delays_the_others_only_briefly() -> None:
    shell = Shell()
    shell.arrives("silent", "a")
    shell.pushes()
    shell.closes()
    assert only(shell.pushes()).command.device == "silent"
    shell.passes(SHORT_US)
    assert only(shell.pushes()).command.device == "a"


def test_what_is_never_confirmed_while_others_are_is_given_up() -> None:
    shell = Shell()
    shell.arrives("silent", "silent")
    for turn in range(3):
        push = only(shell.pushes())
        assert (push.command.command_id, push.repeat) == ("silent-1", turn > 0)
        shell.passes(LIMITS.puback_timeout_us - 1)
        shell.arrives(f"other{turn}")
        shell.confirms(only(shell.pushes()))
        shell.pushes()
        assert shell.core.links[""].overdue(shell.now) is None
        shell.passes(1)
        overdue = shell.core.links[""].overdue(shell.now)
        assert overdue is not None
        assert overdue.mqtt_topic == "t/silent"
        shell.core.link_down(shell.now)
        shell.core.link_up()
    assert only(shell.pushes()).command.command_id == "silent-2"
    assert [one for one, _ in shell.rejected] == ["silent-1"]
    assert "did not confirm it within 60 s, 3 times" in shell.rejected[0][1]


def test_a_broker_that_confirms_nothing_for_long_loses_no_command() -> None:
    shell = Shell()
    shell.arrives("a", "b")
    for _ in range(10):
        assert len(shell.pushes()) == 2
        shell.passes(LIMITS.puback_timeout_us)
        shell.core.link_down(shell.now)
        shell.core.link_up()
    assert not shell.dead


def test_those_that_were_not_confirmed_leave_half_the_window_to_the_others() -> None:
    shell = Shell(replace(LIMITS, window=4))
    shell.arrives("s1", "s2", "s3", "s4", "s5", "s6")
    for push in shell.pushes():
        if push.command.device == "s4":
            shell.confirms(push)  # sent after the three that are silent
    shell.pushes()
    shell.passes(LIMITS.puback_timeout_us)
    shell.core.link_down(shell.now)
    shell.core.link_up()
    again = [push.command.device for push in shell.pushes()]
    assert len(again) == 4
    shell.arrives("other")
    silent = [device for device in again if device in ("s1", "s2", "s3")]
    assert len(silent) == 2, "half of the window"


@pytest.mark.parametrize(
    ("event", "whether"),
    [
        (Disconnected(1, "", closed_by_peer=True), True),
        (Disconnected(1, "", 0x95), True),
        (Disconnected(1, "", 0x81), True),
        (Disconnected(1, "", 0x8B), False),
        (Disconnected(1, "", 0x8E), False),
        (Disconnected(1, ""), False),
        (Disconnected(0, "", closed_by_peer=True), False),
        (Disconnected(0, "", 0x95), False),
    ],
)
def test_only_an_end_that_the_broker_made_may_be_for_a_packet(event: Disconnected, whether: bool) -> None:
    assert perhaps_for_a_packet(event) is whether


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps(*EVENTS, "write_bad", "kill_broker", "pass_time"), st.sampled_from([0, 2, 5]), st.integers(1, 8))
def test_no_interleaving_with_poison_and_dying_brokers_rejects_a_good_command(
    played: list[tuple[str, int]], poison_every: int, window: int
) -> None:
    play(PushWorld(replace(LIMITS, window=window), poison_every=poison_every), played)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 7), st.integers(1, 8), st.integers(10, 40))
def test_all_but_the_poison_arrives(poison_every: int, window: int, count: int) -> None:
    world = PushWorld(replace(LIMITS, window=window), poison_every=poison_every, refusals=False)
    for number in range(count):
        world.write_command(105 * number + (3, 1, 2)[number % 3])  # none expires, none is repeated
    for _ in range(400):
        world.connect(0)
        for step in (world.receive, world.arrive, world.puback, world.store, world.store):
            step(1)
        world.now += SECOND // 2
        world.core.tick(world.now)
        world.run()
    got = {one for ids in world.inbox.values() for one in ids}
    commands = [command for _, command in world.log if command is not None]
    good = {one.command_id for one in commands if not world.poisonous(one)}
    assert good <= got
    rejected = {one for one, found in world.receipts.items() if found[-1].state == "rejected"}
    assert rejected == {one.command_id for one in commands} - good
