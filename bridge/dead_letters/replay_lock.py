"""Lock for one replay at a time: a producer name, unique for each partition in Pulsar.

Pulsar releases the name if the process ends in any way, because its connection closes. If the machine has
crashed or the process is frozen, Pulsar releases the name at the next request of another process: the owner does not
answer for five seconds.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Final

from bridge.errors import FencedError, PulsebridgeError, TerminalError
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import Producer, PulsarClient

__all__ = ["take_lock"]

_NAME: Final = "pulsebridge-replay"
_PROCESS: Final = "pulsebridge.process"
_ATTEMPTS: Final = 5
_WAIT_S: Final = 0.2
"""Time between attempts: Pulsar needs a moment to detect the closed connection of a killed replay."""


def take_lock(client: PulsarClient, admin: PulsarAdmin, partition: str, *, max_pending: int) -> Producer:
    """Return the producer that only one replay can have; closing it releases the lock.

    Raises TerminalError with the process that owns it, TransientError while Pulsar cannot be reached.
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
                properties={_PROCESS: f"process {os.getpid()} on {socket.gethostname()}"},
            )
        except FencedError:
            continue
    raise TerminalError(
        f"another replay of the dead letters is running{_owner(admin, partition)}",
        remedy="wait for its end, then list the remaining ones with `pulsebridge dead-letters list --waiting`",
    )


def _owner(admin: PulsarAdmin, partition: str) -> str:
    try:
        publishers = admin.stats(partition).get("publishers") or []
    except PulsebridgeError:  # without the right, the error does not name the owner
        return ""
    for one in publishers:
        if one.get("producerName") == _NAME:
            process = (one.get("metadata") or {}).get(_PROCESS) or one.get("address", "")
            return f": {process}, since {one.get('connectedSince', 'a while')}"
    return ""
