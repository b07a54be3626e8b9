from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import count, pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bridge.contract.commands import BEFORE_ALL, Command, CommandPosition
from bridge.contract.segments import ParkedId, read_segment, segment_device
from bridge.mqtt.presence import PresenceRules, Sign
from bridge.mqtt.types import Message
from bridge.push.actions import Ack, Action, Copy, Pull, Push, StoreCursor, StoreReceipt, StoreSegment
from bridge.push.partition import Partition
from bridge.push.probes import Presence
from bridge.push.segments import Parked
from bridge.push.states import Mode
from bridge.settings.push import PresenceRule
from tests.simulation.push_world import SECOND, PushWorld, cursors_of
from tests.support.push_limits import Limits

LIMITS = Limits(
    remembered_ids=16,
    retry_min_us=SECOND,
    retry_max_us=4 * SECOND,
    answers=True,
    answer_timeout_us=3 * SECOND,
    park_after=2,
    replay_rate=20,
    probe_min_us=5 * SECOND,
    probe_max_us=20 * SECOND,
)
BROKER = replace(LIMITS, answers=False)
ABSENT = replace(
    LIMITS,
    window=4,
    pending=40,
    device_pending=30,
    answer_timeout_us=SECOND,
    retry_min_us=SECOND // 10,
    retry_max_us=SECOND,
    replay_rate=100,
    resume_every_us=SECOND // 2,
    probe_min_us=60 * SECOND,
    probe_max_us=60 * SECOND,
    move_after_us=SECOND,
)
SMALL = {"window": 2, "pending": 4, "device_pending": 2, "parked_max": 3, "replay_window": 2}
EVENTS = (
    "write_command", "write_command", "receive", "receive", "receive", "arrive", "arrive", "puback", "puback",
    "answer", "answer", "publish", "hear", "copy", "copy", "trim", "store", "store", "store", "store", "pull", "pull", "leave", "come_back", "read_again",
    "lose_link", "connect", "connect", "pass_time", "crash", "lose_cursors",
)  # fmt: skip


def play(world: PushWorld, played: list[tuple[str, int]]) -> None:
    world.connect(0)
    for event, choice in played:
        getattr(world, event)(choice)
    world.finish()


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 1000)), max_size=150),
    st.sampled_from([LIMITS, BROKER]),
    st.sampled_from([{}, SMALL, {"attempts": 2}, {"move_after_us": SECOND}, {"pending_bytes": 6}]),
)
def test_h25_h27_no_interleaving_with_absences_loses_reorders_or_repeats_unmarked(
    played: list[tuple[str, int]], limits: Limits, changes: dict[str, int]
) -> None:
    play(PushWorld(replace(limits, **changes)), played)  # type: ignore[arg-type]


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([LIMITS, BROKER]),
    st.sampled_from([{}, SMALL, {"move_after_us": SECOND}, {"pending_bytes": 6}]),
)
def test_h25_h27_no_long_walk_with_absences_loses_reorders_or_repeats_unmarked(
    seed: int, limits: Limits, changes: dict[str, int]
) -> None:
    walk = random.Random(seed)
    events = [event for event in EVENTS for _ in range(1 if event in ("crash", "lose_cursors") else 4)]
    played = [(walk.choice(events), walk.randrange(1000)) for _ in range(400)]
    play(PushWorld(replace(limits, **changes)), played)  # type: ignore[arg-type]


MOVES = (
    *4 * ("write_command", "receive", "receive", "store", "store", "store", "copy", "copy", "trim", "pass_time", "leave"),
    *2 * ("work", "find", "pull"),
    *("ask", "come_back", "publish", "hear", "crash", "lose_cursors", "forget", "read_again", "lose_link", "connect"),
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
@example(29, False)  # copies stood with what was not moved, in a segment of which the second half was moved then
@example(26, False)
@example(55, True)
@example(2471, True)  # died during a relocation, and settled commands were requested again
def test_h30_no_long_walk_of_absent_devices_loses_what_is_moved(seed: int, answers: bool) -> None:
    walk = random.Random(seed)
    played = [(walk.choice(MOVES), walk.randrange(1000)) for _ in range(400)]
    play(PushWorld(replace(ABSENT, answers=answers)), played)


# --- single steps ---

NOW = 1_000 * SECOND


def command(number: int, device: str = "d", **more: object) -> Command:
    return replace(Command(f"{device}-{number}", device, f"devices/{device}/commands", b"x"), **more)  # type: ignore[arg-type]


def position(number: int) -> CommandPosition:
    return CommandPosition(7, number, -1)


def a_core(limits: Limits = LIMITS) -> Partition:
    core = Partition(3, limits.nested(), {}, None)
    core.link_up(reports_absence=True)
    return core


def of(kind: type, actions: list[Action]) -> list[Any]:
    return [action for action in actions if isinstance(action, kind)]


def test_h25_h29_ids_are_gathered_and_stored_in_segments_before_they_are_acknowledged() -> None:
    core = a_core()
    core.gone("d", NOW, NOW)
    for number in range(600):
        core.arrived(position(number), command(number), NOW)
    assert core.take(NOW) == []  # gathered
    due = core.next_time_us()
    assert due is not None
    assert due <= NOW + 50_000
    core.tick(due)
    segments = of(StoreSegment, core.take(due))
    assert [len(read_segment(s.payload).ids) for s in segments] == [256, 256, 88]
    assert len({s.key for s in segments}) == 3
    assert [len(s.parked) for s in segments] == [
        0,
        0,
        600,
    ]  # stored in this order, so the last vouches for all
    assert core.commands.pending == 600
    for segment in segments:
        core.segment_stored(segment.parked)
    assert len(of(Ack, core.take(due))) == 600
    assert (core.commands.pending, core.segments.parked, core.devices.parked, len(core.devices.awake)) == (0, 600, 1, 0)
    core.arrived(position(600), command(600), due)
    later = due + SECOND
    core.tick(later)
    (again,) = of(StoreSegment, core.take(later))  # only the last is written again
    assert (again.key, len(read_segment(again.payload).ids)) == (segments[2].key, 89)
    core.segment_stored(again.parked)
    core.take(later)
    core.arrived(position(3), command(3), later)  # its acknowledgement was lost
    assert core.take(later) == [Ack(position(3))]
    assert core.retention.end_scan(later).oldest == position(0)


def test_h27_what_arrives_while_a_device_is_replayed_comes_after_what_is_parked() -> None:
    core = a_core()
    core.gone("d", NOW, NOW)
    core.arrived(position(1), command(1), NOW)
    core.alive("d", NOW + 1)
    (pull,) = of(Pull, core.take(NOW + SECOND))
    assert pull.positions == (position(1),)
    core.arrived(position(2), command(2), NOW)
    assert not of(Push, core.take(NOW + SECOND))
    core.pulled("d", pull.epoch, position(1), command(1), NOW)
    (push,) = of(Push, core.take(NOW + SECOND))
    assert (push.position, push.repeat) == (position(1), False)


def test_a_device_that_is_parked_since_it_does_not_answer_is_waited_for_no_more() -> None:
    core = a_core(replace(LIMITS, park_after=1))
    core.arrived(position(1), command(1), NOW)
    (push,) = of(Push, core.take(NOW))
    core.confirmed(push.number, 0, NOW)
    assert core.commands.awaited == 1
    late = NOW + LIMITS.answer_timeout_us
    core.tick(late)
    assert core.commands.awaited == 0
    (segment,) = of(StoreSegment, core.take(late + SECOND))
    core.segment_stored(segment.parked)
    core.take(late + SECOND)
    assert core.settled


def test_h31_an_absence_older_than_the_last_sign_of_life_parks_no_device() -> None:
    core = a_core()
    core.alive("d", NOW)
    core.gone("d", NOW - SECOND, NOW)  # the will of the former connection
    core.arrived(position(1), command(1), NOW)
    assert of(Push, core.take(NOW))
    core.gone("d", NOW + 1, NOW + 1)
    assert core.segments.parked == 1


def test_h31_a_parked_device_is_probed_within_a_minute_and_then_more_and_more_slowly() -> None:
    core = a_core(replace(BROKER, probe_min_us=20 * SECOND, probe_max_us=50 * SECOND, replay_rate=1000))
    core.arrived(position(1), command(1), NOW)
    (push,) = of(Push, core.take(NOW))
    core.confirmed(push.number, 0x10, NOW)
    assert core.segments.parked == 1
    now, waits = NOW, []
    for _ in range(3):
        begin = now
        while not (pulls := of(Pull, actions := core.take(now))):
            for segment in of(StoreSegment, actions):
                core.segment_stored(segment.parked)
            due = core.next_time_us()
            assert due is not None
            now = max(due, now + 1)
            core.tick(now)
        waits.append((now - begin) // SECOND)
        core.pulled("d", pulls[0].epoch, position(1), command(1), now)
        (push,) = of(Push, core.take(now))
        assert push.repeat
        core.confirmed(push.number, 0x10, now)
    assert waits == [20, 40, 50]


def test_h31_a_probe_has_its_turn_though_others_are_back_with_ever_more() -> None:
    core = a_core(replace(LIMITS, replay_rate=20, replay_window=64))
    places = {}
    for device in ("a", "b", "c", "silent"):
        core.gone(device, NOW, NOW)
        for number in range(1 if device == "silent" else 500):
            places[position(len(places))] = command(number, device)
    for place, one in places.items():
        core.arrived(place, one, NOW)
    now, pulled = NOW, list[str]()
    for _ in range(400):
        now += SECOND // 20
        core.tick(now)
        for device in ("a", "b", "c"):
            core.alive(device, now)
        for action in core.take(now):
            if isinstance(action, Pull):
                pulled.append(action.device)
                for place in action.positions:
                    core.pulled(action.device, action.epoch, place, places[place], now)
            elif isinstance(action, Push):
                core.confirmed(action.number, 0, now)
                core.answered(action.position, b"", now, failed=False)
            elif isinstance(action, StoreSegment):
                core.segment_stored(action.parked)
            elif isinstance(action, StoreReceipt):
                core.settlement.receipt_stored(action.position)
            elif isinstance(action, StoreCursor):
                core.cursor_stored(action.device)
        if "silent" in pulled:
            break
    due = (LIMITS.probe_min_us + SECOND) // (SECOND // 20)
    assert len(pulled) < due + 16, f"others had {len(pulled)} turns"
    assert core.segments.parked > 1000, "and more waits for them"


def test_h31_probes_of_many_take_an_eighth_of_the_shaped_rate_and_who_is_back_does_not_wait_for_them() -> None:
    core = a_core(replace(BROKER, probe_min_us=20 * SECOND, replay_rate=80, replay_window=64))
    places = {}
    for number in range(1000):
        core.gone(f"d{number}", NOW, NOW)
        places[position(number)] = command(number, f"d{number}")
    for place, one in places.items():
        core.arrived(place, one, NOW)
    vars(core.presence).update(vars(Presence()))  # as after a restart: no device has given a sign
    core.link_up(reports_absence=True)
    now, probed, got = NOW, list[str](), dict[str, int]()
    for turn in range(600):
        now += SECOND // 10
        core.tick(now)
        if turn == 500:
            back = [f"d{n}" for n in range(0, 1000, 50)]
            for device in back:
                core.alive(device, now)
        for action in core.take(now):
            if isinstance(action, Pull):
                (place,) = action.positions
                probed += [action.device] * action.probing
                core.pulled(action.device, action.epoch, place, places[place], now)
            elif isinstance(action, Push):
                device = places[action.position].device
                there = turn >= 500 and device in back
                core.confirmed(action.number, 0 if there else 0x10, now)
                if there:
                    got[device] = turn - 500
            elif isinstance(action, StoreSegment):
                core.segment_stored(action.parked)
            elif isinstance(action, StoreCursor):
                core.cursor_stored(action.device)
            elif isinstance(action, StoreReceipt):
                core.settlement.receipt_stored(action.position)
    assert 300 < len(probed) <= 402, "ten a second of forty seconds"
    assert sorted(got) == sorted(back)
    assert max(got.values()) <= 30, "within three seconds, though hundreds are still to be tried"


def test_h26_a_parked_device_is_probed_at_qos_1_and_gets_the_rest_as_it_was_meant() -> None:
    """Behind Mosquitto the success of a QoS 2 publish says nothing: its PUBREC is 0 without a subscriber."""
    core = a_core(replace(BROKER, probe_min_us=20 * SECOND, replay_rate=1000))
    core.arrived(position(1), command(1, qos=2), NOW)
    (push,) = of(Push, core.take(NOW))
    assert push.command.qos == 2
    core.confirmed(push.number, 0x10, NOW)
    core.arrived(position(2), command(2, qos=2), NOW)
    now, sent = NOW, []
    for _ in range(30):
        now += 5 * SECOND
        core.tick(now)
        for action in core.take(now):
            if isinstance(action, StoreSegment):
                core.segment_stored(action.parked)
            elif isinstance(action, Pull):
                for one in action.positions:
                    core.pulled("d", action.epoch, one, command(one.entry, qos=2), now)
            elif isinstance(action, Push):
                sent.append((action.command.command_id, action.command.qos))
                core.confirmed(action.number, 0, now)
            elif isinstance(action, StoreReceipt):
                core.settlement.receipt_stored(action.position)
            elif isinstance(action, StoreCursor):
                core.cursor_stored(action.device)
    assert sent == [("d-1", 1), ("d-2", 2)]


def test_h26_without_0x10_and_answers_nothing_is_tried_on_a_parked_device() -> None:
    core = Partition(3, BROKER.nested(), {}, None)
    core.link_up()
    core.arrived(position(1), command(1), NOW)
    (push,) = of(Push, core.take(NOW))
    core.confirmed(push.number, 0, NOW)
    (cursor,) = of(StoreCursor, core.take(NOW))
    core.cursor_stored("d")
    core.gone("d", NOW + 1, NOW + 1)
    (cursor,) = of(StoreCursor, core.take(NOW + 1))
    assert cursors_of(dict(cursor.records))["d"].done < position(1)
    assert core.segments.parked == 1
    for later in range(0, 7200, 5):
        core.tick(NOW + later * SECOND)
        assert not of(Pull, core.take(NOW + later * SECOND))
    core.alive("d", NOW + 7300 * SECOND)
    (pull,) = of(Pull, core.take(NOW + 7300 * SECOND))
    core.pulled("d", pull.epoch, position(1), command(1), NOW)
    (push,) = of(Push, core.take(NOW + 7300 * SECOND))
    assert push.repeat


def test_of_devices_that_are_away_nothing_stays_in_memory_but_their_ids_however_often_their_time_comes() -> None:
    core = Partition(3, BROKER.nested(), {}, None)
    core.link_up()  # this broker does not report absence: no device is probed
    for number, name in enumerate(("a", "b")):
        core.gone(name, NOW, NOW)
        core.arrived(position(number), command(number, name), NOW)
    now = NOW + SECOND
    for segment in of(StoreSegment, core.take(now)):
        core.segment_stored(segment.parked)
    core.take(now)
    assert (core.segments.parked, len(core.devices.awake), list(core.devices.with_cursors)) == (2, 0, [])
    for _ in range(20):
        due = core.next_time_us()
        assert due is not None
        now = max(due, now + 1)
        core.tick(now)
        assert core.take(now) == []
        assert (core.devices.parked, len(core.devices.awake)) == (2, 0)
    assert now > NOW + 60 * SECOND


def test_of_a_device_that_is_probed_again_and_again_no_time_stays_in_memory_until_its_command_expires() -> None:
    core = a_core(replace(BROKER, replay_rate=1000))
    kept = [command(n, name, expires_at_ms=NOW) for n, name in enumerate(("a", "b"))]  # in decades
    for number, one in enumerate(kept):
        core.arrived(position(number), one, NOW)
    now, probes = NOW, 0
    while probes < 1000:
        core.tick(now)
        while actions := core.take(now):
            for action in actions:
                if isinstance(action, Push):
                    core.confirmed(action.number, 0x10, now)
                    probes += 1
                elif isinstance(action, Pull):
                    (where,) = action.positions
                    core.pulled(action.device, action.epoch, where, kept[where.entry], now)
                stored_as(core, [action], {}, 1)
        due = core.next_time_us()
        assert due is not None
        now = max(due, now + 1)
    assert core.segments.parked == 2
    assert len(core.probes._timers) < 200
    core.tick(kept[0].expires_at_ms * 1000)  # and it is seen that they have expired
    assert {pull.device for pull in of(Pull, core.take(kept[0].expires_at_ms * 1000))} == {"a", "b"}


def test_h30_a_slow_device_that_fills_the_partition_waits_in_pulsar() -> None:
    core = a_core(replace(LIMITS, pending=10))
    for number in range(10):
        core.arrived(position(number), command(number), NOW)
    acknowledged = 0
    for later in range(4):
        core.tick(NOW + later * SECOND)
        actions = core.take(NOW + later * SECOND)
        acknowledged += len(of(Ack, actions))
        stored_as(core, actions, {}, 10)
    assert acknowledged >= 9
    core.arrived(position(10), command(1, "other"), NOW)
    assert of(Push, core.take(NOW + 4 * SECOND))


def filled(limits: Limits, arriving: list[Command]) -> tuple[Partition, list[Command]]:
    """A core that takes these as long as the gate would, and fails each that it pushes, by the word of its device."""
    core, left, now = a_core(limits), list(arriving), NOW
    for step in range(120):
        now = NOW + step * SECOND // 2
        while left and core.commands.pending < limits.pending and core.commands.pending_bytes < limits.pending_bytes:
            core.arrived(position(len(arriving) - len(left)), left.pop(0), now)
        core.tick(now)
        actions = core.take(now)
        stored_as(core, actions, {}, len(actions))
        for push in of(Push, actions):
            if push.command.device != "other":
                core.confirmed(push.number, 0, now)
                core.answered(push.position, b"", now, failed=True)
    return core, left


@pytest.mark.parametrize("devices", [1, 5, 50], ids=["one", "some", "a command each"])
@pytest.mark.parametrize(
    "limits",
    [replace(LIMITS, pending=10), replace(LIMITS, pending_bytes=10)],
    ids=["by count", "by bytes"],
)
def test_h30_devices_that_fail_and_fill_the_partition_wait_in_pulsar(limits: Limits, devices: int) -> None:
    failing = [command(number, f"d{number % devices}") for number in range(50)]
    core, left = filled(limits, [*failing, command(1, "other")])
    assert not left, f"{len(left)} were not taken: {core.commands.pending}, {core.commands.pending_bytes} bytes"
    assert core.devices.mode_of("other") is Mode.LIVE


def test_h30_large_payloads_that_fill_the_partition_make_room_themselves_and_small_ones_stay() -> None:
    limits = replace(LIMITS, pending_bytes=100_000)
    small = [command(number, f"s{number % 3}") for number in range(30)]
    large = [command(number, "large", payload=bytes(40_000)) for number in range(5)]
    core, left = filled(limits, [*small, *large, command(1, "other")])
    assert not left
    assert core.devices.mode_of("large") is not Mode.LIVE
    assert {core.devices.mode_of(f"s{number}") for number in range(3)} == {Mode.LIVE}


def test_h30_what_goes_beyond_the_bytes_makes_room_for_itself_and_for_what_was_there() -> None:
    """Of many small devices that fail one alone does not make up for the last, large one."""
    limits = replace(LIMITS, pending_bytes=1000)
    small = [command(number, f"s{number % 30}", payload=bytes(30)) for number in range(33)]
    large = [command(1, "large", payload=bytes(900))]
    core, left = filled(limits, [*small, *large, command(1, "other")])
    assert not left
    assert core.devices.mode_of("other") is Mode.LIVE


def test_h26_a_command_parked_twice_is_resent_if_one_of_both_copies_requires_it() -> None:
    plain, unsure = ParkedId(position(1), 0, maybe_seen=False), ParkedId(position(1), 0, True, True)
    for segments in ({"a": [plain], "b": [unsure]}, {"a": [unsure], "b": [plain]}):
        assert list(Parked.loaded(segments, BEFORE_ALL)) == [unsure]


def stored_as(core: Partition, actions: list[Action], cursors: dict[str, bytes], most: int) -> int:
    """Store the first of these writes and answer for them. Returns how many were stored."""
    done = 0
    for action in actions:
        if isinstance(action, (StoreCursor, StoreSegment)) and done < most:
            done += 1
            if isinstance(action, StoreCursor):
                cursors |= dict(action.records)
                core.cursor_stored(action.device)
            else:
                cursors[action.key] = action.payload
                core.segment_stored(action.parked)
    return done


def successor(cursors: dict[str, bytes], limits: Limits, now: int) -> Partition:
    segments = {key: payload for key, payload in cursors.items() if segment_device(key)}
    core = Partition(
        3, limits.nested(), cursors_of(cursors), None, {"d": segments} if segments else {}, owner="2", now_us=now
    )
    core.link_up()
    return core


def served(core: Partition, cursors: dict[str, bytes], now: int) -> list[Push]:
    """Let everything work for a while. Returns what was pushed."""
    pushed: list[Push] = []
    for later in range(20):
        at = now + later * SECOND
        core.tick(at)
        while actions := core.take(at):
            for action in actions:
                if isinstance(action, Pull):
                    for where in action.positions:
                        core.pulled("d", action.epoch, where, command(where.entry), at)
                elif isinstance(action, Push):
                    pushed.append(action)
                    core.confirmed(action.number, 0, at)
                elif isinstance(action, StoreReceipt):
                    core.settlement.receipt_stored(action.position)
                else:
                    stored_as(core, [action], cursors, 1)
    return pushed


@pytest.mark.parametrize("stored", [0, 1, 2])
def test_h26_a_worker_that_dies_before_the_absence_is_known_forgets_nothing(stored: int) -> None:
    """``stored``: how many of the writes of parking are stored before it dies a second time."""
    cursors: dict[str, bytes] = {}
    core = successor(cursors, BROKER, NOW)
    for number in range(3):
        core.arrived(position(number), command(number), NOW + number)
        (push,) = of(Push, core.take(NOW + number))
        core.confirmed(push.number, 0, NOW + number)
        assert stored_as(core, core.take(NOW + number), cursors, 1) == 1
    now = NOW + SECOND
    core = successor(cursors, BROKER, now)  # the first has died before it knew that the device is offline
    assert core.retention.end_scan(now).oldest == position(0)
    core.alive("d", NOW)  # it was there when it had the first
    core.gone("d", now, now)
    actions = core.take(now)
    now += SECOND
    core.tick(now)
    actions += core.take(now)
    left = stored - stored_as(core, actions, cursors, stored)
    if left > 0:
        core.tick(now)
        stored_as(core, core.take(now), cursors, left)
    core = successor(cursors, BROKER, now)
    core.gone("d", now, now)
    assert core.segments.parked == (3 if stored == 0 else 2)  # its sign of life is not stored with the first write
    core.alive("d", now + 1)
    pushed = served(core, cursors, now + 1)
    assert [p.position.entry for p in pushed] == list(range(0 if stored == 0 else 1, 3))
    assert all(push.repeat for push in pushed)
    assert core.segments.parked == 0
    assert cursors_of(cursors)["d"].resend == []


def test_h26_what_was_confirmed_before_a_sign_of_life_is_not_sent_again() -> None:
    core = a_core(BROKER)
    for number in range(2):
        at = NOW + number * SECOND
        core.arrived(position(number), command(number), at)
        (push,) = of(Push, core.take(at))
        core.confirmed(push.number, 0, at)
        stored_as(core, core.take(at), {}, 1)
    core.alive("d", NOW + SECOND // 2)  # noted by ingest, and read only now
    core.gone("d", NOW + 2 * SECOND, NOW + 2 * SECOND)
    assert core.segments.parked == 1


def test_h26_a_retained_message_does_not_prove_that_a_command_arrived() -> None:
    """The device dies, the broker confirms a command, and push connects again before the broker publishes the will."""
    core = a_core(BROKER)
    core.arrived(position(0), command(0), NOW)
    (push,) = of(Push, core.take(NOW))
    core.confirmed(push.number, 0, NOW)
    stored_as(core, core.take(NOW), {}, 1)
    core.alive("d", NOW + SECOND, dated=False)
    core.gone("d", NOW + 2 * SECOND, NOW + 2 * SECOND)
    assert core.segments.parked == 1


def test_h30_commands_confirmed_long_ago_delay_nothing() -> None:
    core = a_core(BROKER)
    core.arrived(position(0), command(0), NOW)
    (push,) = of(Push, core.take(NOW))
    core.confirmed(push.number, 0, NOW)
    stored_as(core, core.take(NOW), {}, 1)
    core.take(NOW)
    core.settlement.receipt_stored(position(0))
    core.arrived(position(1), command(0), NOW)  # again
    core.take(NOW)
    core.settlement.receipt_stored(position(1))
    later = NOW + BROKER.unsure_us + SECOND
    assert core.retention.end_scan(NOW).oldest == position(0)
    assert core.retention.end_scan(later).oldest > position(0)  # type: ignore[operator]


def test_h26_the_retention_subscription_keeps_commands_that_a_later_owner_may_push_again() -> None:
    core = a_core(BROKER)
    core.arrived(position(0), command(0), NOW)
    (push,) = of(Push, core.take(NOW))
    core.confirmed(push.number, 0, NOW)
    stored_as(core, core.take(NOW), {}, 1)
    core.take(NOW)
    core.settlement.receipt_stored(position(0))
    core.alive("d", NOW + 1)  # which the cursor does not tell
    core.arrived(position(1), command(0), NOW)
    core.take(NOW)
    core.settlement.receipt_stored(position(1))
    core.take(NOW)
    assert core.retention.end_scan(NOW + 1).oldest == position(1)
    assert core.retention.trims_to(NOW + 1) is None
    assert core.retention.trims_to(NOW + BROKER.unsure_us) is None
    assert core.retention.trims_to(NOW + BROKER.unsure_us + 2) == position(1)


def parked_unanswered(core: Partition) -> int:
    """One command is pushed twice and not answered; two more wait. Returns the time."""
    for number in range(3):
        core.arrived(position(number), command(number), NOW)
    now = NOW
    for _ in range(2):
        (push,) = of(Push, core.take(now))
        core.confirmed(push.number, 0, now)
        now += 4 * SECOND
        core.tick(now)
        now += 4 * SECOND
        core.tick(now)
    assert core.segments.parked == 3
    for segment in of(StoreSegment, core.take(now)):
        core.segment_stored(segment.parked)
    core.take(now)
    return now


def test_a_late_answer_wakes_a_parked_device_and_settles_its_command() -> None:
    core = a_core()
    now = parked_unanswered(core) + SECOND
    assert core.answered(position(0), b"done", now, failed=False)
    (pull,) = of(Pull, core.take(now))
    for where in pull.positions:
        core.pulled("d", pull.epoch, where, command(where.entry), now)
    actions = core.take(now)
    (row,) = of(StoreReceipt, actions)
    assert (row.receipt.command_id, row.receipt.state, row.receipt.answer) == ("d-0", "answered", b"done")
    assert row.receipt.attempts == 2
    core.settlement.receipt_stored(position(0))
    core.take(now)
    core.cursor_stored("d")
    assert [push.position.entry for push in served(core, {}, now)][:1] == [1]


def test_a_late_answer_settles_what_was_pulled_already_and_one_that_failed_only_wakes() -> None:
    core = a_core()
    now = parked_unanswered(core) + SECOND
    assert core.answered(position(0), b"no", now, failed=True)
    (pull,) = of(Pull, core.take(now))
    core.link_down()  # so that it is not pushed yet
    core.pulled("d", pull.epoch, position(0), command(0), now)
    assert core.answered(position(0), b"done", now, failed=False)
    (row,) = of(StoreReceipt, core.take(now))
    assert row.receipt.state == "answered"
    assert not core.answered(position(7), b"?", now, failed=False)


def test_h31_a_sign_older_than_the_absence_wakes_no_device() -> None:
    core = a_core()
    now = parked_unanswered(core)
    core.alive("d", now - 5 * SECOND)
    assert not of(Pull, core.take(now))
    core.alive("d", now + 1)
    assert of(Pull, core.take(now + SECOND))


def test_h31_after_a_takeover_only_signs_that_the_former_owner_did_not_have_wake() -> None:
    core = a_core()
    core.gone("d", NOW, NOW)
    core.arrived(position(1), command(1), NOW)
    now = NOW + SECOND
    core.tick(now)
    segments = {s.key: s.payload for s in of(StoreSegment, core.take(now))}
    for seen, woken in ((now - 1, False), (now + 1, True)):
        core = Partition(3, BROKER.nested(), {}, None, {"d": segments}, owner="2", now_us=now + 5, left_us=now)
        core.link_up()
        core.alive("d", seen)
        assert bool(of(Pull, core.take(now + SECOND))) == woken


@pytest.mark.parametrize("stored", [0, 1, 2, 9])
def test_h30_what_waits_for_long_is_moved_and_a_crash_in_between_loses_and_doubles_nothing(
    stored: int,
) -> None:
    """``stored``: how many of the writes of the move are stored before the owner dies."""
    limits = replace(LIMITS, move_after_us=100 * SECOND, probe_min_us=1000 * SECOND, replay_rate=1000)
    cursors: dict[str, bytes] = {}
    core = successor(cursors, limits, NOW)
    core.gone("d", NOW, NOW)
    for number in range(300):
        core.arrived(position(number), command(number), NOW)
    now = NOW + SECOND
    core.tick(now)
    stored_as(core, core.take(now), cursors, 9)
    core.take(now)
    now += 101 * SECOND
    core.retention.trims_to(now)
    copies: dict[CommandPosition, int] = {}
    writes: list[StoreSegment] = []
    while orders := of(Copy, actions := core.take(now)):
        (order,) = orders
        places = [CommandPosition(50, len(copies) + n, -1) for n in range(len(order.positions))]
        copies |= {place: where.entry for place, where in zip(places, order.positions, strict=True)}
        core.relocation.copied(order.relocation, places, now)
        writes += [action for action in actions if isinstance(action, StoreSegment)]
        now += SECOND
        core.tick(now)
    assert core.retention.end_scan(now).oldest == position(0)  # not stored yet
    writes += of(StoreSegment, actions)
    assert [len(read_segment(w.payload).ids) if w.payload else 0 for w in writes] == [256, 0]
    for write in writes[:stored]:
        cursors[write.key] = write.payload
        core.segment_stored(write.parked)
        core.relocation.stored(write.relocation)
    assert core.retention.end_scan(now).oldest == (position(0) if stored == 0 else position(256))
    for key in [key for key, payload in cursors.items() if not payload]:
        del cursors[key]
    core = successor(cursors, limits, now)
    assert core.segments.parked == 300
    assert core.retention.end_scan(now).oldest == (position(0) if stored == 0 else position(256))
    assert core.retention.keeps_copies_from() == (None if stored == 0 else CommandPosition(50, 0, -1))
    core.alive("d", now + 1)
    asked: list[int] = []
    for later in range(60):
        actions = core.take(now + later * SECOND)
        for pull in of(Pull, actions):
            for where, place in zip(pull.positions, pull.copies, strict=True):
                assert (place is None) == (stored == 0 or where.entry >= 256)
                assert place is None or copies[place] == where.entry
                asked.append(where.entry)
                core.pulled("d", pull.epoch, where, None, now)
                core.settlement.receipt_stored(where)
        for action in [*actions, *core.take(now + later * SECOND)]:
            stored_as(core, [action], cursors, 1)
    assert asked == list(range(300))
    assert core.segments.parked == 0


@pytest.mark.parametrize("gone_again", [False, True])
def test_h27_what_an_owner_was_sending_goes_on_without_a_sign_of_life_unless_the_device_went_again(
    gone_again: bool,
) -> None:
    """With a broker that accepts commands without a subscriber there is no probe."""
    core, cursors = Partition(3, BROKER.nested(), {}, None), dict[str, bytes]()
    core.link_up()
    core.gone("d", NOW, NOW)
    for number in range(3):
        core.arrived(position(number), command(number), NOW)
    due = core.next_time_us()
    assert due is not None
    core.tick(due)
    stored_as(core, core.take(due), cursors, 1)
    core.alive("d", NOW + SECOND)
    actions = core.take(NOW + SECOND)
    assert of(Pull, actions)
    stored_as(core, actions, cursors, 1)
    if gone_again:
        core.gone("d", NOW + 2 * SECOND, NOW + 2 * SECOND)
        stored_as(core, core.take(NOW + 2 * SECOND), cursors, 1)
    segments = {key: payload for key, payload in cursors.items() if segment_device(key)}
    now = NOW + 10 * SECOND
    after = Partition(
        3, BROKER.nested(), cursors_of(cursors), None, {"d": segments}, owner="2", now_us=now, left_us=now
    )
    after.take(now)
    after.link_up()
    assert not of(Pull, after.take(now))
    assert bool(of(Pull, after.take(now + 3 * SECOND))) is not gone_again


def test_h30_a_device_that_comes_back_in_the_middle_of_a_move_is_served_from_where_it_stood() -> None:
    limits = replace(LIMITS, move_after_us=100 * SECOND, probe_min_us=1000 * SECOND, replay_rate=1000)
    core = a_core(limits)
    core.gone("d", NOW, NOW)
    core.arrived(position(1), command(1), NOW)
    now = NOW + SECOND
    core.tick(now)
    for segment in of(StoreSegment, core.take(now)):
        core.segment_stored(segment.parked)
    core.take(now)
    now += 101 * SECOND
    core.retention.trims_to(now)
    (order,) = of(Copy, core.take(now))
    core.alive("d", now)
    (pull,) = of(Pull, core.take(now + SECOND))
    assert pull.copies == (None,)
    core.relocation.copied(order.relocation, [CommandPosition(50, 0, -1)], now)
    assert not of(StoreSegment, core.take(now + SECOND))
    assert core.retention.end_scan(now).oldest == position(1)


def away(limits: Limits, names: list[str]) -> Partition:
    """Each of ``names`` is away with one command, whose ids are stored half a second after ``NOW``."""
    core = a_core(limits)
    for number, name in enumerate(names):
        core.gone(name, NOW, NOW)
        core.arrived(position(number), command(number, name), NOW)
    core.tick(NOW + SECOND // 2)
    for segment in of(StoreSegment, core.take(NOW + SECOND // 2)):
        core.segment_stored(segment.parked)
    core.take(NOW + SECOND // 2)
    return core


def test_h30_moves_and_probes_go_on_beside_each_other() -> None:
    """However many devices wait to be tried: else what they wait for would keep everybody's commands in Pulsar."""
    limits = replace(LIMITS, move_after_us=100 * SECOND, probe_min_us=SECOND, probe_max_us=SECOND, replay_rate=50)
    names = [f"d{number}" for number in range(300)]
    core = away(limits, names)
    now = NOW + 102 * SECOND
    core.tick(now)
    moved, tried = set[CommandPosition](), set[str]()
    steps = count()
    while len(moved) < len(names) and (step := next(steps)) < 5000:
        if step % 20 == 0:  # those that wait to be tried are moved as well
            core.retention.trims_to(now)
        actions = core.take(now)
        for one in of(StoreSegment, actions):
            core.segment_stored(one.parked)
            if one.relocation:
                core.relocation.stored(one.relocation)
        for order in of(Copy, actions):
            places = [CommandPosition(50, len(moved) + n, -1) for n in range(len(order.positions))]
            moved.update(order.positions)
            core.relocation.copied(order.relocation, places, now)
        for pull in of(Pull, actions):
            tried.add(pull.device)
            for where in pull.positions:
                core.pulled(pull.device, pull.epoch, where, command(where.entry, pull.device), now)
            core.gone(pull.device, now, now)
        due = core.next_time_us()
        assert due is not None
        assert actions or due > now, "due at once, for ever"
        now = max(due, now)
        core.tick(now)
    assert len(moved) == len(names)
    assert len(tried) > len(names) * 2 // 3
    # a probe costs eight tokens, and a move as many as it has commands; those that wait to be tried last come last
    assert now < NOW + 102 * SECOND + len(names) * SECOND // 2


def test_devices_are_tried_in_the_order_of_the_log_and_each_comes_to_its_turn() -> None:
    """However many are due at once, and however often others are: what is read for one stands behind what was read last."""
    names = [f"d{number}" for number in range(200)]
    core = away(replace(LIMITS, probe_min_us=SECOND, probe_max_us=SECOND, replay_rate=50), names)
    now = NOW + SECOND // 2
    core.arrived(position(200), command(200, "d150"), now)  # not stored for now: kept with more than its ids
    tried: list[int] = []
    while len(tried) < 2 * len(names):
        due = core.next_time_us()
        assert due is not None
        now = max(now, due)
        core.tick(now)
        for pull in of(Pull, core.take(now)):
            tried.append(pull.positions[0].entry)
            core.pulled(pull.device, pull.epoch, pull.positions[0], command(0, pull.device), now)
            core.gone(pull.device, now, now)
    few = 16  # of the next round stand beside the last of a round
    assert set(tried[: len(names) + few]) == set(range(len(names)))
    assert set(Counter(tried).values()) <= {1, 2, 3}
    assert sum(one > two for one, two in pairwise(tried)) <= 5


def test_presence_evicts_the_device_with_the_oldest_sign() -> None:
    presence = Presence(most_bytes=900)
    for device in ("a", "b", "c"):
        presence.gone(device, 5)
    assert [presence.absent(device) for device in ("a", "b", "c")] == [False, True, True]


def test_rules_read_birth_and_will() -> None:
    rules = PresenceRules([PresenceRule(filter="devices/+device/status", absent=("offline",))])
    assert rules.filters == ("devices/+/status",)

    def sign(topic: str, payload: bytes) -> Sign | None:
        return rules.sign(Message(topic, payload, 1, False, False, 1, None))

    assert sign("devices/7/status", b"offline") == Sign("7", False)
    assert sign("devices/7/status", b"online") == Sign("7", True)
    assert sign("devices/7/other", b"offline") is None
    with pytest.raises(ValueError, match="captures no device"):
        PresenceRule(filter="devices/+/status")


def test_what_expires_while_it_is_parked_has_its_receipt_without_a_push() -> None:
    core = a_core(replace(LIMITS, probe_min_us=60 * SECOND))
    core.gone("d", NOW, NOW)
    soon = (NOW + 3 * SECOND) // 1000
    core.arrived(position(1), command(1, expires_at_ms=soon), NOW)
    core.arrived(position(2), command(2), NOW)
    at = NOW + SECOND
    core.tick(at)
    for segment in of(StoreSegment, core.take(at)):
        core.segment_stored(segment.parked)
    core.take(at)
    due = core.next_time_us()
    assert due == NOW + 3 * SECOND
    core.tick(due)
    (pull,) = of(Pull, core.take(due))
    core.pulled("d", pull.epoch, position(1), command(1, expires_at_ms=soon), due)
    (row,) = of(StoreReceipt, core.take(due))
    assert row.receipt.state == "expired"
    core.settlement.receipt_stored(position(1))
    assert of(StoreCursor, core.take(due))
    core.cursor_stored("d")
    (pull,) = of(Pull, core.take(due + SECOND))
    core.pulled("d", pull.epoch, position(2), command(2), due + SECOND)
    assert not of(Push, core.take(due + SECOND))  # it is still away
    assert core.segments.parked == 1


def test_what_had_expired_and_is_not_in_pulsar_any_more_has_no_receipt_that_says_it_was_lost() -> None:
    """Its acknowledgement was lost, so it came again and was parked; the hold had passed it."""
    core = a_core()
    core.gone("d", NOW, NOW)
    soon = (NOW + SECOND) // 1000
    core.arrived(position(1), command(1, expires_at_ms=soon), NOW)
    core.alive("d", NOW + 1)
    (pull,) = of(Pull, core.take(NOW + SECOND // 2))
    core.pulled("d", pull.epoch, position(1), None, NOW + 2 * SECOND)
    (row,) = of(StoreReceipt, core.take(NOW + 2 * SECOND))
    assert (row.receipt.state, row.receipt.reason) == ("expired", "")


def test_h11_parked_commands_are_stored_again_when_the_cursors_topic_was_deleted() -> None:
    core = a_core()
    core.gone("d", NOW, NOW)
    for number in range(300):
        core.arrived(position(number), command(number), NOW)
    now = NOW + SECOND
    core.tick(now)
    for segment in of(StoreSegment, core.take(now)):
        core.segment_stored(segment.parked)
    assert core.segments.parked == 300
    core.segments.rewrite_all(now)
    later = now + SECOND
    core.tick(later)
    again = of(StoreSegment, core.take(later))
    assert [one.position.entry for s in again for one in read_segment(s.payload).ids] == list(range(300))
    assert core.segments.parked == 300


def test_h31_devices_whose_ids_are_stored_again_stay_parked_and_an_older_sign_of_life_wakes_none() -> None:
    names = [f"d{number}" for number in range(2500)]
    core = away(LIMITS, names)
    now, _ = store_ids(core, NOW + SECOND)
    assert (core.devices.parked, len(core.devices.awake)) == (2500, 0)
    core.segments.rewrite_all(now)
    assert not core.settled
    assert not core.clean
    now, stored = store_ids(core, now)
    assert sorted(stored) == sorted(names)
    assert (core.devices.parked, len(core.devices.awake)) == (2500, 0)
    core.places.presence = Presence()  # which evicts the device with the oldest sign
    core.alive("d7", NOW - 1)
    assert core.devices.mode_of("d7") is Mode.PARKED
    core.alive("d7", NOW + 1)
    assert core.devices.mode_of("d7") is Mode.REPLAYING


def store_ids(core: Partition, now: int) -> tuple[int, list[str]]:
    """Store what ids there are to store. Returns when that was done, and whose segments were stored."""
    stored: list[str] = []
    while some := of(StoreSegment, core.take(now + SECOND // 10)):
        now += SECOND // 10
        assert len(some) <= 1000, "the queue of the producer is bounded"
        for segment in some:
            stored.append(segment_device(segment.key) or "")
            core.segment_stored(segment.parked)
    return now, stored
