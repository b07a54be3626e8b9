"""How long a change of tables waits for a query that has not read what came before it."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from bridge.errors import TransientError
from streaming import following
from streaming.following import Following


def waits_for(
    monkeypatch: pytest.MonkeyPatch, *, batches: bool, until: int | None, ended: bool = False
) -> Any:
    """Return what comes of the wait: a look takes 20 ms, and the query has read all at look ``until``."""
    looks = count()
    monkeypatch.setattr(following, "_POLL_S", 0.02)
    monkeypatch.setattr(following, "batches_of", lambda *_: (next(looks) if batches else 7, 7))
    monkeypatch.setattr(following, "CheckpointLock", lambda *_: SimpleNamespace(ended=lambda: ended))
    waiting: Any = Following.__new__(Following)
    waiting.spark, waiting.tables, waiting.wait_s = None, SimpleNamespace(checkpoint=str), 0.1
    read = count()
    monkeypatch.setattr(
        waiting, "_version", lambda *_, **__: (3, 9) if until is not None and next(read) >= until else None
    )
    return waiting._settled("gold")


def test_a_query_that_goes_on_is_waited_for_beyond_the_time_for_one_that_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert waits_for(monkeypatch, batches=True, until=20) == (3, 9)


def test_a_query_whose_driver_works_on_a_long_batch_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert waits_for(monkeypatch, batches=False, until=20) == (3, 9)


@pytest.mark.parametrize(("ended", "until"), [(True, 20), (False, None)])
def test_a_query_that_stands_is_named_soon_after_its_driver_and_at_last_beside_one(
    monkeypatch: pytest.MonkeyPatch, ended: bool, until: int | None
) -> None:
    with pytest.raises(TransientError, match="the query gold has not read all of silver"):
        waits_for(monkeypatch, batches=False, until=until, ended=ended)
