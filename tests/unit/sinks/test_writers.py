"""What is shared by the sinks' writers."""

from __future__ import annotations

import pytest

from sinks import writers
from sinks.writers import prepare
from tests.support.clock import set_clock


def test_a_stream_is_prepared_once_in_half_a_minute_and_a_batch_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]
    monkeypatch.setattr(writers, "_prepared", {})
    set_clock(monkeypatch, writers, lambda: now[0])
    asked: list[str] = []

    def write(what: str, *, stream: bool) -> int:
        prepare(what, lambda: asked.append(what), stream=stream)
        return len(asked)

    assert write("a", stream=True) == 1
    now[0] += 29.9
    assert write("a", stream=True) == 1
    assert write("b", stream=True) == 2
    assert write("a", stream=False) == 3
    now[0] += 30.1
    assert write("a", stream=True) == 4


def test_what_failed_is_prepared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "_prepared", {})
    tries: list[bool] = []

    def act() -> None:
        tries.append(True)
        if len(tries) == 1:
            raise ConnectionError

    with pytest.raises(ConnectionError):
        prepare("a", act, stream=True)
    prepare("a", act, stream=True)
    assert len(tries) == 2
