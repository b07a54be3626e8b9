"""Progress line on the terminal; without a terminal it shows nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["reading_shown"]


@contextmanager
def reading_shown() -> Iterator[Callable[[str, int], None]]:
    """Yield a function of a topic's name and the number of messages read; stderr shows both inside the context."""
    from rich.console import Console

    from bridge.display import markup

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _topic, _count: None
        return
    with console.status("reading Pulsar") as status:
        yield lambda topic, count: status.update(f"reading {markup(topic)}: {count:,}")
