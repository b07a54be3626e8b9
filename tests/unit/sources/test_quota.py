"""The alarm at half of a backlog quota: once for each partition, and again when it comes back."""

from __future__ import annotations

import structlog

from bridge.contract import Position
from sources.planning import Ledger, PartitionView
from sources.quota import QuotaWatch

PARTITIONS = {"t-partition-0": "t", "t-partition-1": "t", "free": "free"}


def views(held: int) -> dict[str, PartitionView]:
    """Ten entries of ten bytes in each partition, of which the first has ``held`` unread ones, the second one."""
    ledger = (Ledger(1, 10, 100),)
    return {
        "t-partition-0": PartitionView("t-partition-0", ledger, {"q": Position(1, 9 - held)}),
        "t-partition-1": PartitionView("t-partition-1", ledger, {"q": Position(1, 8)}),
        "free": PartitionView("free", ledger, {"q": Position(1, -1)}),
    }


def test_h13_half_a_quota_is_reported_once_and_the_quotas_are_read_once_a_minute() -> None:
    now, asked = [0.0], []

    def limits(topics: object) -> dict[str, int]:
        asked.append(now[0])
        return {"t": 100}

    watch = QuotaWatch("q", limits, lambda: now[0])
    with structlog.testing.capture_logs() as logs:
        for at, held in ((0, 4), (30, 9), (60, 5), (120, 8), (180, 4), (240, 5)):
            now[0] = at
            watch.look(views(held), PARTITIONS)
    assert asked == [0, 60, 120, 180, 240]
    assert [(line["log_level"], line["partition"], line.get("backlog_bytes")) for line in logs] == [
        ("warning", "t-partition-0", 50),
        ("info", "t-partition-0", None),
        ("warning", "t-partition-0", 50),
    ]
