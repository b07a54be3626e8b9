"""Waiting for a wake-up: none is lost, whatever the threads' order."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Iterator

import pytest

from bridge.poller import Poller


@pytest.fixture
def hectic() -> Iterator[None]:
    """Let threads take turns at almost every instruction."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("hectic")
def test_no_wake_up_is_lost() -> None:
    """A lost one shows as a wait that never ends: no thread wakes again until the item is taken."""
    poller, items = Poller(), deque[int]()
    taken = threading.Semaphore(0)
    count = 3000

    def produce() -> None:
        for number in range(count):
            items.append(number)
            poller.wake()
            taken.acquire()

    producers = [threading.Thread(target=produce, daemon=True) for _ in range(4)]
    for producer in producers:
        producer.start()
    left = count * len(producers)
    while left:
        poller.wait(None, 120.0, read=False, write=False)
        while items:
            items.popleft()
            taken.release()
            left -= 1
    for producer in producers:
        producer.join()
    poller.close()
    poller.wake()  # harmless afterwards
