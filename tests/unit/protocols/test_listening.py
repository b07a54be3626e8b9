"""The listeners' event loop, as the process's health sees it."""

from __future__ import annotations

import threading
import time

from bridge.health import Health
from bridge.protocols.listening import Listening
from tests.support.waiting import poll_for


def test_a_handler_that_blocks_the_loop_makes_the_process_sick_until_it_lets_go() -> None:
    health = Health(stuck_s=1.5)
    listening = Listening(health)
    listening.start()
    release = threading.Event()
    try:
        poll_for(lambda: health.verdict(time.monotonic()).ready, 10, "the loop to turn")
        listening.loop.call_soon_threadsafe(release.wait)
        sick = poll_for(lambda: health.verdict(time.monotonic()).sick, 30, "the loop to stand still")
        assert "has not turned" in sick["listeners"]
        release.set()
        poll_for(lambda: health.verdict(time.monotonic()).healthy, 10, "the loop to turn again")
    finally:
        release.set()
        listening.end()
