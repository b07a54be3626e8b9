"""Expansion of group commands: a world of Pulsar in which the expander dies anywhere, and single steps."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.contract import C_CAUSE, C_GROUP, C_ID, Receipt
from bridge.contract.commands import BEFORE_ALL, Command, CommandPosition
from bridge.contract.groups import (
    GroupCommand,
    decode_group_command,
    encode_group_command,
    entry_id,
    entry_of,
    group_problem,
    member_key,
    member_of,
)
from bridge.contract.names import MAX_NAME_BYTES
from bridge.errors import ContractError
from bridge.pulsar.client import Message
from bridge.push.groups.expanding import BadCommand, Expander
from bridge.push.groups.log import GroupLog
from bridge.push.groups.owner import _decoded
from bridge.push.groups.roster import OWNER, Change, Membership, Progress, Roster, matches, owner_of
from bridge.settings.push import GroupRule
from tests.support.stored_message import StoredMessage

SECOND = 1_000_000
WEEK = 7 * 86_400 * SECOND
RULES = (GroupRule(name="ruled", devices=("d1", "x*")),)
GROUPS = ("a", "b", "ruled")
NAMES = ("d0", "d1", "d2", "x1", "x2")
LINKS = ("north", "south")


class Died(Exception):
    pass


@dataclass
class GroupWorld:
    """Pulsar, and an expander that may die before, within and after each step. Only what Pulsar has survives."""

    now: int = 1_000_000 * SECOND
    chunk: int = 2
    log: list[tuple[CommandPosition, GroupCommand | BadCommand, int]] = field(default_factory=list)
    table: dict[tuple[str, str], bool] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    roster: dict[str, bytes] = field(default_factory=dict)
    entries: list[Command] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    letters: list[int] = field(default_factory=list)
    released: int = 0
    read: int = 0
    steps_left: int = 10**9
    crashes: int = 0
    wanted: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Who must have each group command in the end, by its id."""

    def __post_init__(self) -> None:
        self.start()

    # --- what may happen ---

    def join(self, choice: int) -> None:
        self._put(choice, member=True)

    def leave(self, choice: int) -> None:
        self._put(choice, member=False)

    def _put(self, choice: int, *, member: bool) -> None:
        group, device = GROUPS[choice % 2], NAMES[choice // 2 % len(NAMES)]
        self.table[group, device] = member
        self.membership.put(group, device, member=member)

    def be_known(self, choice: int) -> None:
        self.known.add(NAMES[choice % len(NAMES)])
        self.membership.knows(self.known)

    def follow(self, _choice: int) -> None:
        """The expander looks at the memberships."""
        self.do(lambda: self.expander.changed(self.now))

    def write(self, choice: int) -> None:
        number = len(self.log)
        position = CommandPosition(number // 4, number % 4 // 2, number % 2)  # batches of two
        old = [one for _, one, _ in self.log if isinstance(one, GroupCommand)]
        if choice % 11 == 0:
            self.log.append((position, BadCommand("bad", f"bad-{number}", "a"), self.now))
        elif choice % 7 == 0 and old:
            self.log.append((position, old[choice % len(old)], self.now))
        else:
            group = "unknown" if choice % 13 == 0 else GROUPS[choice % 3]
            expires = self.now // 1000 + 5000 if choice % 5 == 0 else 0
            broadcast = choice % 2 == 0
            command = GroupCommand(f"c{number}", group, "", b"payload", expires_at_ms=expires, broadcast=broadcast)
            self.log.append((position, command, self.now))

    def receive(self, _choice: int) -> None:
        if self.read < len(self.log):
            position, command, published = self.log[self.read]
            self.read += 1
            self.do(lambda: self.expander.arrived(position, command, published, self.now))
            self.do(lambda: self.expander.passed(self.now))

    def pass_time(self, choice: int) -> None:
        self.now += choice % 8 * SECOND
        self.do(lambda: self.expander.passed(self.now))

    def reconnect(self, _choice: int) -> None:
        """All that is not acknowledged comes again."""
        self.read = self.released

    def age(self, choice: int) -> None:
        """The oldest record of the roster has stood for a day."""
        if choice % 3 == 0:
            self.expander.aged()
        self.do(lambda: self.expander.rewritten())

    def doom(self, choice: int) -> None:
        """It dies a few steps from now."""
        self.steps_left = choice % 6

    # --- the shell ---

    def start(self) -> None:
        self.read = self.released
        self.steps_left = 10**9
        roster = Roster()
        for key, payload in self.roster.items():
            roster.take(key, payload)
        self.membership = Membership(RULES)
        for (group, device), member in self.table.items():
            self.membership.put(group, device, member=member)
        self.membership.knows(self.known)
        self.expander = Expander(
            roster,
            self.membership,
            cast(GroupLog, self),
            "to/{device}",
            WEEK,
            self.chunk,
            _broadcast_topic="to/{group}",
            _links=LINKS,
        )
        self.do(lambda: self.expander.resume(self.now))

    def do(self, event: Callable[[], None]) -> None:
        try:
            event()
        except Died:
            self.crashes += 1
            self.start()

    # --- the log ---

    def _write(self, write: Callable[[int], None], count: int) -> None:
        """Of ``count`` records some are stored when the expander dies."""
        self.steps_left -= 1
        dies = self.steps_left < 0
        write(count // 2 if dies else count)
        if dies:
            raise Died

    def write_entries(self, entries: Sequence[Command]) -> None:
        assert len(entries) <= max(self.chunk, len(self.log), len(LINKS))
        self._write(lambda count: self.entries.extend(entries[:count]), len(entries))

    def store(self, changes: Sequence[Change]) -> None:
        def write(count: int) -> None:
            for change in changes[:count]:
                key, payload = change.encode("me")
                self.roster.pop(key, None)
                if payload:
                    self.roster[key] = payload

        self._write(write, len(changes))

    def write_receipts(self, receipts: Sequence[Receipt]) -> None:
        self._write(lambda count: self.receipts.extend(receipts if count == len(receipts) else ()), len(receipts))

    def give_up(self, _reason: str) -> None:
        self._write(lambda count: self.letters.extend([self.read - 1][:count]), 1)

    def release(self, position: CommandPosition) -> None:
        self._write(lambda count: self._release(position) if count else None, 1)

    def _release(self, position: CommandPosition) -> None:
        count = sum(1 for where, _, _ in self.log if where[:2] <= position[:2])
        for where, command, published in self.log[self.released : count]:
            if isinstance(command, GroupCommand):
                states = {r.state for r in self.receipts if r.position == where.encode(0) and not r.device}
                assert states, "acknowledged without a receipt"
                if "expanded" in states and not command.expires_at_ms:
                    assert self.now >= published + WEEK, "let go of before it expired"
        self.released = max(self.released, count)

    # --- checks ---

    def finish(self) -> None:
        self.steps_left = 10**9
        while self.read < len(self.log):
            self.receive(0)
        self.follow(0)
        receipted = defaultdict(set)
        for receipt in self.receipts:
            receipted[receipt.command_id].add(receipt.state)
        groups_of = {one.command_id: one.group for _, one, _ in self.log if isinstance(one, GroupCommand)}
        had: dict[str, list[str]] = defaultdict(list)
        self.check_broadcasts()
        for entry in self.entries:
            assert entry.ref is not None
            if entry.is_broadcast:
                continue
            assert entry.command_id == entry_id(entry.ref.command_id, entry.device)
            had[entry.device].append(entry.ref.command_id)
        for one, group in groups_of.items():
            assert receipted[one], f"{one} has no receipt"
            if "expanded" not in receipted[one]:
                assert not any(one in ids for ids in had.values())
                continue
            command = next(c for _, c, _ in self.log if isinstance(c, GroupCommand) and c.command_id == one)
            if not command.expires_at_ms:  # open for a week: all who are in the group now have it
                for device in self.membership.members(group):
                    assert one in had[device], f"{device} of {group} lacks {one}"
        # One that was rejected, and came again when its group was known, has its place from then on.
        taken = {r.position for r in self.receipts if r.state == "expanded" and not r.device}
        places = [(n, c.command_id) for n, (where, c, _) in enumerate(self.log) if where.encode(0) in taken]
        rank = {one: n for n, one in reversed(places)}
        for device, ids in had.items():
            for group in GROUPS:
                first = [one for one in dict.fromkeys(ids) if groups_of[one] == group]
                assert first == sorted(first, key=rank.__getitem__), f"{device} has {group} out of order"
            repeats = len(ids) - len(set(ids))
            assert repeats <= self.crashes * len(self.log), "repeats without a crash"
            assert repeats == 0 or self.crashes
        for number in self.letters:
            command_ = self.log[number][1]
            # Died between the letter and the receipt: it may have expired since, or its group be known.
            assert isinstance(command_, BadCommand) or self.crashes or "rejected" in receipted[command_.command_id]

    def check_broadcasts(self) -> None:
        """Each one precedes the entries, at each broker, and names the group's command before it, also if written twice."""
        last: dict[str, CommandPosition] = {}
        done = {r.position: r for r in self.receipts if r.state == "expanded" and not r.device}
        for position, command, _ in self.log:
            receipt = done.get(position.encode(0))
            if receipt is None or not isinstance(command, GroupCommand):
                continue
            mine = [one for one in self.entries if one.ref is not None and one.ref.position == position]
            broadcasts = [one for one in mine if one.is_broadcast]
            assert {one.link for one in broadcasts} == (set(LINKS) if command.broadcast and receipt.members else set())
            assert not broadcasts or mine[0].is_broadcast, "it precedes the entries"
            after = last.get(command.group, BEFORE_ALL)
            assert {one.ref.after for one in broadcasts if one.ref} <= {after}
            assert len({one.command_id for one in broadcasts}) <= len(LINKS)
            assert all(one.was_broadcast is command.broadcast for one in mine if not one.is_broadcast)
            last[command.group] = position


EVENTS = ("join", "join", "leave", "be_known", "follow", "write", "write", "receive", "receive", "pass_time",
          "reconnect", "age", "doom")  # fmt: skip


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 1000)), max_size=80),
    st.sampled_from([1, 2, 100]),
)
def test_each_member_of_a_group_gets_its_open_commands_in_order_wherever_the_expander_dies(
    played: list[tuple[str, int]], chunk: int
) -> None:
    world = GroupWorld(chunk=chunk)
    for event, choice in played:
        getattr(world, event)(choice)
    world.finish()


# --- single steps ---


def command(number: int = 1, group: str = "a", **more: object) -> GroupCommand:
    return GroupCommand(f"c{number}", group, "to/{device}", b"payload", **more)  # type: ignore[arg-type]


def place(number: int) -> CommandPosition:
    return CommandPosition(7, number, -1)


class Steps:
    """A log that notes what is written to it."""

    def __init__(self) -> None:
        self.all: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Callable[[Any], None]:
        return lambda what: self.all.append((name, what))

    def of(self, name: str) -> list[Any]:
        """What was written by one method."""
        return [one for step, what in self.all if step == name for one in what]


def an_expander(*names: str, longest_us: int = WEEK) -> tuple[Expander, Membership, Roster, Steps]:
    membership, roster, steps = Membership(()), Roster(), Steps()
    for name in names:
        membership.put("a", name, member=True)
    expander = Expander(roster, membership, cast(GroupLog, steps), "to/{device}", longest_us, 2)
    expander.resume(0)
    steps.all.clear()
    return expander, membership, roster, steps


def test_the_order_of_steps_is_that_of_the_docstring() -> None:
    expander, _, roster, steps = an_expander("d2", "d1", "d3")
    expander.arrived(place(1), command(), 1, 1)
    assert [name for name, _ in steps.all] == [
        "store", "write_entries", "store", "write_entries", "store", "write_receipts", "store",
    ]  # fmt: skip
    entries = steps.of("write_entries")
    assert [entry.device for entry in entries] == ["d1", "d2", "d3"]
    assert roster.progress == Progress(place(1))
    entry = entries[0]
    assert (entry.mqtt_topic, entry.payload, entry.size) == ("to/d1", b"", 7)
    assert entry.ref is not None
    assert entry.ref.position == place(1)


def test_a_broadcast_precedes_the_entries_and_follows_the_groups_last_command_that_is_open_or_done() -> None:
    membership, roster, steps = Membership(()), Roster(), Steps()
    for group in ("a", "b"):
        membership.put(group, "d1", member=True)
    expander = Expander(roster, membership, cast(GroupLog, steps), "to/{device}", WEEK, _broadcast_topic="to/{group}")
    expander.resume(0)
    steps.all.clear()
    expander.arrived(place(1), command(1, broadcast=True), 1, 1)
    names = [name for name, _ in steps.all]
    assert names == ["store", "write_entries", "write_entries", "store", "write_receipts", "store"]
    broadcast, entry = steps.of("write_entries")
    assert (broadcast.is_broadcast, broadcast.mqtt_topic, broadcast.retain) == (True, "to/a", False)
    assert entry.was_broadcast
    expander.arrived(place(2), command(2, "b"), 1, 1)
    expander.arrived(place(3), command(3), 1, 1)
    expander.passed(WEEK + SECOND)  # none is open any more
    again = Roster()
    for change in steps.of("store"):
        again.take(*change.encode("me"))
    for one in (roster, again):
        assert (one.before("a", place(4)), one.before("b", place(4))) == (place(3), place(2))
    steps.all.clear()
    expander.arrived(place(4), command(4, broadcast=True, retain=True), 2 * WEEK, 2 * WEEK)
    assert steps.of("write_entries")[0].ref.after == place(3)


@pytest.mark.parametrize(
    ("topic", "group", "reason"),
    [("", "a", "needs push.confirm: device"), ("to/{group}", "a+", r"broadcast: mqtt_topic: is 'to/a\+'")],
)
def test_a_broadcast_that_cannot_be_is_rejected_with_the_reason(topic: str, group: str, reason: str) -> None:
    membership, roster, steps = Membership(()), Roster(), Steps()
    membership.put(group, "d1", member=True)
    expander = Expander(roster, membership, cast(GroupLog, steps), "to/{device}", WEEK, _broadcast_topic=topic)
    expander.resume(0)
    steps.all.clear()
    expander.arrived(place(1), command(1, group, broadcast=True), 1, 1)
    assert [name for name, _ in steps.all] == ["give_up", "write_receipts", "store"]
    (receipt,) = steps.of("write_receipts")
    assert receipt.state == "rejected"
    assert re.search(reason, receipt.reason)


def test_an_expiry_is_given_and_bounded_by_when_it_was_emitted_or_published() -> None:
    hour = 3600 * SECOND
    for given_ms, emitted, published, expires_ms in (
        (0, 0, 100 * SECOND, 3_700_000),
        (0, 40 * SECOND, 100 * SECOND, 3_640_000),
        (0, 900 * SECOND, 100 * SECOND, 3_700_000),  # a clock that is ahead prolongs nothing
        (50_000_000, 0, 100 * SECOND, 3_700_000),
        (200_000, 0, 100 * SECOND, 200_000),
    ):
        expander, _, roster, _ = an_expander("d", longest_us=hour)
        expander.arrived(place(1), command(expires_at_ms=given_ms, emitted_at_us=emitted), published, published)
        assert roster.open[place(1)].command.expires_at_ms == expires_ms
        assert expander.next_expiry_us() == expires_ms * 1000


def test_an_entry_of_a_batch_is_released_only_when_all_of_it_came() -> None:
    expander, _, _, steps = an_expander()
    first, second, third = CommandPosition(7, 1, 0), CommandPosition(7, 1, 1), CommandPosition(7, 2, 0)
    for position in (first, second):
        expander.arrived(position, BadCommand("bad"), 1, 1)
        steps.all.clear()
        expander.passed(1)
        assert not steps.all
    expander.arrived(third, BadCommand("bad"), 1, 1)
    steps.all.clear()
    expander.passed(1)
    assert steps.all == [("release", second)]


def test_a_member_whose_name_makes_no_topic_is_refused_and_the_others_have_theirs() -> None:
    expander, _, _, steps = an_expander("d1", "d/+")
    expander.arrived(place(1), command(), 1, 1)
    refused, whole = steps.of("write_receipts")
    assert (refused.device, refused.state, refused.group_command_id) == ("d/+", "rejected", "c1")
    assert "mqtt_topic" in refused.reason
    assert whole.state == "expanded"
    assert [entry.device for entry in steps.of("write_entries")] == ["d1"]


def test_a_roster_is_read_back_as_it_was_written_and_a_stale_progress_takes_nothing_back() -> None:
    expander, membership, roster, steps = an_expander("d1", "d2")
    expander.arrived(place(1), command(cause="rule/1"), 1, 1)
    membership.put("a", "d2", member=False)
    expander.changed(1)
    first = [OWNER, *steps.of("store")]
    again = Roster()
    again.take(*roster.known("a").encode("x"))
    again.take(*roster.joined("a", "d1").encode("x"))
    for change in [*first, *first[:3]]:
        key, payload = change.encode("me")
        assert owner_of(key, payload) in ("me", None)
        again.take(key, payload)
    assert again.progress == roster.progress
    assert again.left == roster.left == {("a", "d2"): place(1)}
    assert again.open[place(1)] == roster.open[place(1)]
    with pytest.raises(ContractError, match="roster"):
        again.take("nonsense", b"{}")


def test_all_records_of_a_roster_are_rewritten_with_their_current_values() -> None:
    expander, membership, roster, steps = an_expander("d1", "d2", "d3")
    expander.arrived(place(1), command(cause="rule/1"), 1, 1)
    membership.put("a", "d2", member=False)
    expander.changed(1)
    expander.aged()
    membership.put("a", "d3", member=False)
    expander.changed(1)
    steps.all.clear()
    expander.rewritten()
    again = Roster()
    for change in steps.of("store"):
        again.take(*change.encode("me"))
    assert again == roster
    assert OWNER in steps.of("store")
    steps.all.clear()
    expander.rewritten()
    assert not steps.all, "once"
    expander.aged()
    expander.passed(WEEK + SECOND)
    steps.all.clear()
    expander.rewritten()
    keys = [change.key for change in steps.of("store")]
    assert keys == [("owner",), ("progress",), ("group", "a"), ("member", "a", "d1")], "and none that is gone"


@given(st.text("ab*?", max_size=8), st.text("ab", max_size=8))
def test_a_pattern_means_what_a_regular_expression_does(pattern: str, name: str) -> None:
    expression = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    assert matches(pattern, name) == (re.fullmatch(expression, name) is not None)


def test_a_pattern_of_many_stars_takes_no_long_time() -> None:
    assert not matches("*a" * 40 + "b", "a" * 20_000)


NAMED = st.text(min_size=1, max_size=20).filter(lambda text: "\0" not in text and text.isprintable())


@given(NAMED, NAMED, st.binary(max_size=20), st.sampled_from([0, 1, 2]), st.integers(0, 2**40))
def test_group_commands_and_memberships_come_back_as_they_were(
    name: str, device: str, payload: bytes, qos: int, expires: int
) -> None:
    made = GroupCommand("c", name, "to/{device}", payload, qos, expires_at_ms=expires, cause="why")
    assert decode_group_command(encode_group_command(made), payload) == made
    bare = GroupCommand("c", name, "", payload)
    assert decode_group_command(encode_group_command(bare), payload) == bare
    assert member_of(member_key(name, device), b'{"v":1}') == (name, device, True)
    assert member_of(member_key(name, device), b"") == (name, device, False)
    assert entry_of(made, device, place(1), 3, "x").command_id == entry_id("c", device)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"group": ""}, "group: is empty"),
        ({"mqtt_topic": "all/commands"}, "must contain {device}"),
        ({"mqtt_topic": "{room}/{device}"}, "braces are allowed in"),
        ({"mqtt_topic": "+/{device}"}, r"no \+ or #"),
        ({"command_id": ""}, "command_id: is empty"),
        ({"qos": 3}, "qos: is 3"),
    ],
)
def test_a_bad_group_command_is_named(changes: dict[str, object], words: str) -> None:
    whole = {"command_id": "c", "group": "g", "mqtt_topic": "t/{device}", "payload": b""} | changes
    with pytest.raises(ContractError, match=words):
        encode_group_command(GroupCommand(**whole))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value", "column"),
    [
        (C_CAUSE, "\1" * 1_000_000, "cause"),
        (C_ID, "\1" * 5_000_000, "command_id"),
        (C_GROUP, "\1" * 5_000_000, "group"),
    ],
)
def test_a_group_command_whose_texts_have_no_bound_is_given_up_with_what_pulsar_takes(
    name: str, value: str, column: str
) -> None:
    """The roster had a record of six bytes for each of them, which Pulsar refused at each attempt: no group got more."""
    message = StoredMessage(1, "a", b"payload", properties=encode_group_command(command()) | {name: value})
    bad = _decoded(cast(Message, message))
    assert isinstance(bad, BadCommand)
    expander, _, roster, steps = an_expander("d1")
    expander.arrived(place(1), bad, 1, 1)
    assert [name for name, _ in steps.all] == ["give_up", "write_receipts", "store"]
    assert steps.all[0][1].startswith(f"{column}: ")
    (receipt,) = steps.of("write_receipts")
    assert receipt.state == "rejected"
    assert len(receipt.encode()) < 1_500_000
    assert roster.progress == Progress(place(1))
    steps.all.clear()
    expander.arrived(place(2), command(), 1, 1)
    assert steps.all[1][0] == "write_entries"


def test_the_longest_texts_of_a_group_command_make_records_that_pulsar_takes() -> None:
    template = "{device}/" * 7281
    long = GroupCommand("i" * MAX_NAME_BYTES, '"' * MAX_NAME_BYTES, template, b"p", cause="\1" * 4096)
    assert group_problem(long) is None
    membership, roster = Membership(()), Roster()
    membership.put(long.group, "d" * 1000, member=True)
    steps = Steps()
    expander = Expander(roster, membership, cast(GroupLog, steps), "to/{device}", WEEK)
    expander.resume(1)
    expander.arrived(place(1), long, 1, 1)
    written = [change.encode("me")[1] for change in steps.of("store")]
    receipted = [receipt.encode() for receipt in steps.of("write_receipts")]
    assert len(receipted) == 2, "the member's topic is too long"
    assert max(map(len, [*written, *receipted])) < 1_000_000
