"""What a device is told that names the place to go on from, and what becomes of what it is told."""

from __future__ import annotations

from bridge.commands import Command, CommandPosition
from bridge.push.actions import Action, AnswerRequest, Push, StoreCursor, StoreReceipt, StoreSegment
from bridge.push.queues import Limits, Mode
from bridge.push.resume import ResumingCore
from bridge.push.resume_requests import ResumeRequest

SECOND = 1_000_000
NOW = 1_000 * SECOND


def place(number: int) -> CommandPosition:
    return CommandPosition(7, number, -1)


def stored(core: ResumingCore, now: int) -> list[Action]:
    """Take what the core decides, all stored at once and all pushed confirmed by the broker."""
    found: list[Action] = []
    while actions := core.take(now):
        for action in actions:
            found.append(action)
            if isinstance(action, Push):
                core.sent(action.number, now)
                core.confirmed(action.number, 0, now)
            elif isinstance(action, StoreCursor):
                core.cursor_stored(action.device)
            elif isinstance(action, StoreSegment):
                core.segment_stored(action.parked)
            elif isinstance(action, StoreReceipt):
                core.receipt_stored(action.position)
    return found


def test_h27_after_a_clean_takeover_a_device_may_name_what_it_had_and_is_parked_since() -> None:
    limits = Limits(park=True, park_after=1, answers=True, answer_timeout_us=3 * SECOND)
    former = ResumingCore(0, limits, {}, None)
    former.link_up()
    for number in (1, 2):
        former.arrived(place(number), Command(f"c-{number}", "d", "t", b"x"), NOW)
    done = stored(former, NOW)
    assert [one.position for one in done if isinstance(one, Push)] == [place(1)]
    for later in (4, 5):
        former.tick(NOW + later * SECOND)
        done += stored(former, NOW + later * SECOND)
    assert former.mode_of("d") is Mode.PARKED
    segments = {one.key: one.payload for one in done if isinstance(one, StoreSegment)}
    now = NOW + 10 * SECOND
    core = ResumingCore(0, limits, {}, None, {"d": {k: v for k, v in segments.items() if v}}, now_us=now)
    core.link_up()
    core.asked(ResumeRequest("d", "text", place(1), now, 1), now)
    answers = [one for one in stored(core, now) if isinstance(one, AnswerRequest)]
    assert [one.answer.error for one in answers] == [""]
    core.asked(ResumeRequest("d", "text", place(3), now, 2), now)
    answers = [one for one in stored(core, now) if isinstance(one, AnswerRequest)]
    assert ["no such command yet" in one.answer.error for one in answers] == [True]
