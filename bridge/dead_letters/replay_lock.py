"""One replay of the dead letters at a time: a producer of a fixed name, of which Pulsar lets a partition have one.

The name is free again when its process ends, however it ends: Pulsar sees its connection close. When the machine has
gone, or the process is frozen, Pulsar finds out once another one asks for the name: it gets no answer for five seconds.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Final

from bridge.errors import FencedError, PulsebridgeError, TerminalError
from bridge.pulsar_admin import PulsarAdmin
from bridge.pulsar_client import Producer, PulsarClient

__all__ = ["take_lock"]

_NAME: Final = "pulsebridge-replay"
_WHO: Final = "pulsebridge.process"
_ATTEMPTS: Final = 5
_WAIT_S: Final = 0.2
"""So long Pulsar may take to see that a killed replay's connection has closed."""


def take_lock(client: PulsarClient, admin: PulsarAdmin, partition: str, *, max_pending: int) -> Producer:
    """Return the producer that only one replay may have; closing it gives it back.

    Raises TerminalError naming the process that has it, TransientError while Pulsar cannot be reached.
    """
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_WAIT_S)
        try:
            return client.producer(
                partition,
                batching=False,
                max_pending=max_pending,
                name=_NAME,
                properties={_WHO: f"process {os.getpid()} on {socket.gethostname()}"},
            )
        except FencedError:
            continue
    raise TerminalError(
        f"another replay of the dead letters is running{_holder(admin, partition)}",
        remedy="wait for its end, then look with `pulsebridge dead-letters list --waiting` what is left",
    )


def _holder(admin: PulsarAdmin, partition: str) -> str:
    try:
        publishers = admin.stats(partition).get("publishers") or []
    except PulsebridgeError:  # not allowed: then it is not named
        return ""
    for one in publishers:
        if one.get("producerName") == _NAME:
            who = (one.get("metadata") or {}).get(_WHO) or one.get("address", "")
            return f": {who}, since {one.get('connectedSince', 'a while')}"
    return ""
