"""How the threads beside a session end: whatever ends one is told, so that nobody waits for a thread that is gone."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["telling"]


def telling(work: Callable[[], None], failed: Callable[[Exception], None]) -> Callable[[], None]:
    """Return ``work`` as the target of a thread; ``failed`` is called on it with what ends it but its return."""

    def told() -> None:
        try:
            work()
        except Exception as e:  # noqa: BLE001 it is handed to the owner, whose session ends with it
            failed(e)

    return told
