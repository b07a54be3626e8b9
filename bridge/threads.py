"""Threads whose end their owner must notice."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["start_thread"]


def start_thread(name: str, work: Callable[[], None], failed: Callable[[Exception], None]) -> threading.Thread:
    """Run ``work`` in a thread of that name; ``failed`` is called on it with the exception that ends it."""

    def run() -> None:
        try:
            work()
        except Exception as e:  # noqa: BLE001 it is handed to the owner
            failed(e)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
