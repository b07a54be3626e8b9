from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.commands import CommandPosition
from bridge.errors import DeniedError, TransientError
from bridge.pulsar_client import message_id
from bridge.push import ends
from bridge.push.cursor import NOWHERE
from bridge.push.ends import EVERYTHING, Ledgers, end_of
from bridge.settings import PulsarSettings


def stats(entries: dict[int, int], current: int = 0) -> dict[str, Any]:
    return {
        "ledgers": [{"ledgerId": ledger, "entries": count} for ledger, count in entries.items()],
        "currentLedgerEntries": current,
    }


@given(st.dictionaries(st.integers(0, 20), st.integers(0, 5)), st.integers(0, 5))
def test_the_end_is_the_last_entry_that_is_there(closed: dict[int, int], current: int) -> None:
    ledgers = Ledgers(stats({**closed, 21: 0}, current))
    there = [(ledger, entry) for ledger, count in {**closed, 21: current}.items() for entry in range(count)]
    assert ledgers.end[:2] == max(there, default=NOWHERE[:2])
    for ledger in range(23):
        for entry in range(7):
            assert ledgers.has(CommandPosition(ledger, entry, 3)) == ((ledger, entry) in there)


def test_a_partition_that_was_never_written_has_no_end() -> None:
    assert Ledgers({}).end == NOWHERE


@pytest.mark.parametrize(
    ("said", "shown", "end"),
    [
        ((5, 7), None, (5, 7)),  # what the broker says of a message is so
        ((-1, -1), stats({5: 8, 9: 0}), (5, 7)),
        ((9, -1), stats({5: 8, 9: 0}), (5, 7)),
        ((-1, -1), stats({5: 8, 9: 0}, current=3), (9, 2)),
        ((-1, -1), stats({9: 0}), NOWHERE[:2]),
        ((-1, -1), DeniedError("internalStats is not for us"), EVERYTHING[:2]),
        ((-1, -1), TransientError("the admin does not answer"), EVERYTHING[:2]),
    ],
)
def test_h24_a_broker_that_says_nothing_is_there_is_not_believed(
    said: tuple[int, int], shown: Any, end: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Admin:
        def __init__(self, *_settings: object, timeout_s: float) -> None: ...

        def __enter__(self) -> Admin:
            return self

        def __exit__(self, *_exc: object) -> None: ...

        def internal_stats(self, _topic: str) -> dict[str, Any]:
            if isinstance(shown, Exception):
                raise shown
            assert isinstance(shown, dict)
            return shown

    monkeypatch.setattr(ends, "PulsarAdmin", Admin)
    assert end_of(PulsarSettings(), "commands-partition-0", message_id(0, *said, -1))[:2] == end
