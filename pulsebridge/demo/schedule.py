"""When which device sends what: the recordings laid on one clock, with the faults that are mixed in. Pure.

A fault is a message of its own beside the real readings (its id ends in ``-x…``); it never takes a reading's
place, so that the number of real readings is not touched. The share is deterministic, without chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pulsebridge.demo.payloads import FAULTS, encode, encode_fault
from pulsebridge.demo.recordings import Reading, VirtualDevice

__all__ = ["Send", "expected_counts", "timeline"]


class Send(NamedTuple):
    """One publish to come. ``fault`` is empty for a real reading."""

    due_s: float
    """Seconds after the start of the replay."""
    device: int
    """Index in the fleet."""
    seq: int
    """Place in the device's own sequence, faults included: what the order is judged by."""
    reading: Reading
    fault: str = ""

    def reading_id(self, device: VirtualDevice) -> str:
        """Return the id that travels in the payload."""
        return f"{device.name}-x{self.seq:05d}" if self.fault else device.reading_id(self.reading.seq)

    def payload(self, device: VirtualDevice, sent_us: int) -> bytes:
        """Return the bytes to publish, sent at ``sent_us`` (µs since the epoch)."""
        ts = f"{self.reading.ts.isoformat()}Z"
        if self.fault:
            return encode_fault(self.fault, self.reading_id(device), ts, device.kind.metric, sent_us)
        return encode(self.reading_id(device), ts, device.kind.metric, self.reading.value, sent_us)


def timeline(devices: Sequence[VirtualDevice], speed: float, fault_every: int = 0) -> list[Send]:
    """Return every publish in the order of time. After each ``fault_every`` readings a fault follows; 0 for none.

    Devices start one after the other within their first interval, so that they do not send in step.
    """
    sends: list[Send] = []
    for index, device in enumerate(devices):
        offset = device.kind.interval_s / speed * index / len(devices)
        sends += [Send(offset + r.due_s / speed, index, r.seq, r) for r in device.readings]
    sends.sort(key=lambda s: (s.due_s, s.device, s.seq))
    if fault_every:
        sends = _with_faults(sends, fault_every)
    return _numbered(sends, len(devices))


def _with_faults(sends: Iterable[Send], every: int) -> list[Send]:
    mixed: list[Send] = []
    for number, send in enumerate(sends, 1):
        mixed.append(send)
        if number % every == 0:
            mixed.append(send._replace(fault=FAULTS[number // every % len(FAULTS)]))
    return mixed


def _numbered(sends: Iterable[Send], devices: int) -> list[Send]:
    following = [0] * devices
    numbered = []
    for send in sends:
        numbered.append(send._replace(seq=following[send.device]))
        following[send.device] += 1
    return numbered


def expected_counts(sends: Iterable[Send]) -> tuple[int, int]:
    """Return how many real readings and how many faults the timeline holds."""
    faults = readings = 0
    for send in sends:
        if send.fault:
            faults += 1
        else:
            readings += 1
    return readings, faults
