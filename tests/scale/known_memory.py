"""Memory and CPU of the core of push with many known devices, without any server.

Run as ``python -m tests.scale.known_memory KNOWN PARKED``. It gives the records of four partitions to their cores, as a
takeover does, and writes what that took as JSON.
"""

from __future__ import annotations

import gc
import json
import sys
import time

import psutil

import bridge.push.worker  # noqa: F401  # what a push process has in memory anyway
from bridge.collector import excluded_objects, reduce_collections
from bridge.contract.commands import CommandPosition
from bridge.push.cursor_log import CursorRecords
from bridge.push.limits import Limits
from bridge.push.partition import Partition
from tests.scale.records import cursor_record, devices_of, segment_record
from tests.support.memory import peak_memory

__all__ = ["EACH", "PARTITIONS"]

EACH = 10
PARTITIONS = 4


def _core(partition: int, known: int, parked: int, spent: list[float]) -> Partition:
    now_us = time.time_ns() // 1000
    limits = Limits()
    found = CursorRecords(limits.remembered_ids, (now_us - limits.parked.unsure_us) // 1000)
    for number in devices_of(partition, PARTITIONS, range(known)):
        records = [cursor_record(number, now_us)]
        if number < parked:
            records.append(segment_record(number, EACH, now_us))
        begin = time.process_time()
        for key, payload in records:
            found.take(key, payload, CommandPosition(1, number, -1))
        spent[0] += time.process_time() - begin
    begin = time.process_time()
    core = Partition(partition, limits, found.whole(), CommandPosition(99, 0, -1), found.parked, now_us=now_us)
    spent[1] += time.process_time() - begin
    return core


def main() -> None:
    known, parked = int(sys.argv[1]), int(sys.argv[2])
    reduce_collections()
    process = psutil.Process()
    before = process.memory_info().rss
    spent = [0.0, 0.0]
    with excluded_objects():
        cores = [_core(partition, known, parked, spent) for partition in range(PARTITIONS)]
    gc.collect()
    found = {
        "known": known,
        "parked": parked,
        "bytes_before": before,
        "bytes": process.memory_info().rss,
        "peak_bytes": peak_memory(process.pid),
        "reading_cpu_s": spent[0],
        "restoring_cpu_s": spent[1],
    }
    assert sum(core.devices.parked for core in cores) == parked
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
