"""The text of `devices show`."""

from __future__ import annotations

from typing import Any

import pytest

from pulsebridge.output.devices import device_text


def shown(**times: str | None) -> dict[str, Any]:
    receipt: dict[str, Any] = {"command_id": "c-1", "state": "answered", "attempts": 1, "reason": ""}
    receipt |= {"emitted": None, "confirmed": None, "answered": None, **times}
    return {
        "device": "press-1", "presence": "present", "last_seen": None, "link": None, "partition": 0,
        "owner": {"serves": True, "process": "host/1"}, "cursor": None, "last_delivery": None, "pending": 0,
        "parked": 0, "commands": [], "receipts": [receipt], "read": {"receipts": 1, "backlog_left_out": 0, "backlog_cut": False, "backlog": 0},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({"emitted": "T1", "confirmed": "T2", "answered": "T3"}, "T3"),
        ({"emitted": "T1", "confirmed": "T2"}, "T2"),
        ({"emitted": "T1"}, "T1"),
    ],
)
def test_a_receipt_has_the_time_of_its_last_step(times: dict[str, str | None], expected: str) -> None:
    """The time of an answer is that of the device; the broker may have had the command long before, in the session."""
    last = next(line for line in device_text(shown(**times)).splitlines() if line.startswith("c-1"))
    assert last.split()[:4] == ["c-1", "answered", "1", expected]
