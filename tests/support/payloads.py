"""Payloads as the live audit has them."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from pulsebridge.audit.live.payloads import PADDING, Payloads

__all__ = ["checksum", "payloads_of"]


def payloads_of(each: list[bytes], between: bytes = b"") -> Payloads:
    """Return payloads with other bytes before each."""
    ends = np.array(list(accumulate(len(between + payload) for payload in each)), np.int64)
    sizes = np.array(list(map(len, each)), np.int64)
    return Payloads(b"".join(between + payload for payload in each) + PADDING, ends - sizes, ends)


def checksum(payload: bytes) -> int:
    """Return the audit's checksum of a payload."""
    return int(payloads_of([payload]).checksums()[0])
