"""What ends a partition's session, and what the process."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from bridge.errors import (
    ContractError,
    DeniedError,
    PulsebridgeError,
    RefusedError,
    TerminalError,
    TerminatedError,
    TransientError,
)
from bridge.health import Health
from bridge.push import sessions, supervisor
from bridge.push.metrics import PushMetrics
from bridge.push.supervisor import PartitionSupervisor
from bridge.settings import Settings
from tests.support.waiting import poll_for


class Failing:
    """Stands for a session, and ends with one error after another; then it lasts until it is stopped."""

    errors: list[BaseException]
    made = ended = 0
    has = owns = stuck = False

    def __init__(self, *args: Any) -> None:
        type(self).made += 1
        self._stopping = next(one for one in args if isinstance(one, threading.Event))

    def run(self) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self._stopping.wait()
        type(self).ended += 1

    def wake(self) -> None:
        pass


def owning(monkeypatch: pytest.MonkeyPatch, *errors: BaseException) -> tuple[PartitionSupervisor, list[BaseException]]:
    class Made(Failing):
        pass

    Made.errors = list(errors)
    monkeypatch.setattr(supervisor, "Session", Made)
    monkeypatch.setattr(sessions, "_RETRY_S", (0.01, 0.02))
    failed: list[BaseException] = []
    metrics = PushMetrics(CollectorRegistry()).partition(0)
    part = Health(30.0).part("partition 0")
    made = PartitionSupervisor(Settings(), 0, metrics, part, failed.append, cast(Any, None))
    made.start()
    return made, failed


@pytest.mark.parametrize(
    "error",
    [
        KeyError("x"),
        UnicodeEncodeError("utf-8", "\ud800", 0, 1, "no"),
        ContractError("c"),
        TransientError("t"),
    ],
)
def test_h42_an_error_that_one_message_provoked_ends_the_session_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    one, failed = owning(monkeypatch, error, error)
    poll_for(lambda: supervisor.Session.made == 3, 30, "a session that lasts")  # type: ignore[attr-defined]
    one.stop()
    one.join()
    assert failed == []


@pytest.mark.parametrize("error", [TerminalError("t"), DeniedError("d"), RefusedError("r"), TerminatedError("e")])
def test_an_error_that_needs_a_change_by_the_operator_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, error: PulsebridgeError
) -> None:
    one, failed = owning(monkeypatch, error)
    one.join()
    assert failed == [error]


def test_a_partition_that_is_for_another_process_is_given_up_and_tried_again_once_it_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, failed = owning(monkeypatch)
    sessions = cast(Any, supervisor).Session
    for number in (1, 2, 3):
        one.want(True, fence=False)
        poll_for(lambda: (sessions.made, sessions.ended) == (number, number - 1), 30, "a session")  # noqa: B023
        one.want(False, fence=False)
        poll_for(lambda: sessions.ended == number, 30, "its end")  # noqa: B023
    one.stop()
    one.join()
    assert (sessions.made, failed) == (3, [])
