"""A host application in a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bridge.settings import Settings
from sparkplug.host import Host
from tests.support.waiting import await_end

__all__ = ["running_host"]


@contextmanager
def running_host(settings: Settings, host_id: str) -> Iterator[Host]:
    """Run a host until the block ends."""
    stopping = threading.Event()
    host = Host(settings, host_id, stopping)
    thread = threading.Thread(target=host.run, daemon=True)
    thread.start()
    try:
        yield host
    finally:
        stopping.set()
        await_end(thread)
