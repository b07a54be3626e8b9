"""The records that push keeps in Pulsar of devices that had commands, as it would have written them."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator
from functools import cache
from hashlib import blake2b

from bridge.contract.commands import CommandPosition
from bridge.contract.cursors import Unproven, key_of_term
from bridge.contract.partitioning import partition_of
from bridge.contract.segments import ParkedId, encode_segment, segment_key
from bridge.push.cursor import Cursor
from tests.support.device_fleet import device_name

__all__ = ["cursor_record", "devices_of", "segment_record"]

_DAY_US = 86_400_000_000
_TERM = "1f4a.3c"
"""An owner's."""
COMMANDS = 5
"""Commands that a known device has had, one a day: its cursor names their ids, and the last confirmations of the broker."""


def devices_of(partition: int, partitions: int, devices: range) -> Iterator[int]:
    """Yield the devices whose commands are in a partition."""
    for number in devices:
        if partition_of(device_name(number), partitions) == partition:
            yield number


@cache
def _template(now_us: int) -> tuple[bytes, bytes, bytes]:
    """Return the record of a device in three parts: between them are its position and its ids."""
    cursor = Cursor(256)
    last_us = now_us - 3_600_000_000
    for day in range(COMMANDS):
        at_us = last_us - (COMMANDS - 1 - day) * _DAY_US
        position = CommandPosition(0, day, -1)  # before all that is written now
        cursor.add_unproven(Unproven(ParkedId(position, 0, True, True), at_us))
        cursor.settle(position, f"earlier-{day}", delivered=True, at_us=at_us)
    ((_, payload),) = cursor.records("", whole=True)
    found = re.fullmatch(rb'(.*"position":\[0,)\d+(,-1\],"ids":")[^"]+(".*)', payload)
    assert found is not None
    return found[1], found[2], found[3]


def cursor_record(number: int, now_us: int) -> tuple[str, bytes]:
    """Return key and payload of a device's cursor, an hour after its last command. Costs little, for a million of them."""
    name = device_name(number)
    ids = b64encode(blake2b(name.encode(), digest_size=9 * COMMANDS).digest())
    first, second, third = _template(now_us)
    return key_of_term(name, _TERM), b"%b%d%b%b%b" % (first, number * COMMANDS, second, ids, third)


def segment_record(number: int, each: int, now_us: int) -> tuple[str, bytes]:
    """Return key and payload of the segment of a device for which ``each`` commands are parked."""
    numbers = [n for one in range(each) for n in ParkedId(CommandPosition(100, number * each + one, -1)).numbers()]
    return segment_key(device_name(number), "owner", number), encode_segment(numbers, [], now_us)
