"""The audit's first record: what the devices themselves wrote down."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pulsebridge.audit.records import Ack, Published, Received
from pulsebridge.demo.journal import ACKNOWLEDGED, COMMAND, PUBLISHED, read_journal

__all__ = ["Journals", "read_journals"]


class Journals(NamedTuple):
    """All devices' journals, each device's lines in the order in which it wrote them."""

    published: tuple[Published, ...]
    acks: tuple[Ack, ...]
    received: tuple[Received, ...]


def read_journals(folder: Path, metrics: Iterable[tuple[str, str]]) -> Journals:
    """Read the journals of a folder. ``metrics`` are (device prefix, metric) pairs: ``("cgm", "glucose")``."""
    by_prefix = dict(metrics)
    published: list[Published] = []
    acks: list[Ack] = []
    received: list[Received] = []
    for path in sorted(folder.glob("*.jsonl")):
        device = path.stem
        metric = by_prefix.get(device.rpartition("-")[0], "")
        for line in read_journal(path):
            event, us = line["e"], int(line["us"])
            if event == PUBLISHED:
                published.append(
                    Published(
                        line["id"],
                        device,
                        metric,
                        int(line["seq"]),
                        line["ts"],
                        line["value"],
                        line.get("fault", ""),
                        us,
                    )
                )
            elif event == ACKNOWLEDGED:
                acks.append(Ack(line["id"], device, us))
            elif event == COMMAND:
                received.append(Received(line["id"], device, int(line["n"]), bool(line["dup"]), us))
    return Journals(tuple(published), tuple(acks), tuple(received))
