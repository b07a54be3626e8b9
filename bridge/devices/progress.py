"""A line on the terminal that says what is being read; nothing where nobody looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["reading_shown"]


@contextmanager
def reading_shown() -> Iterator[Callable[[str, int], None]]:
    """Yield a function that takes what is read and how many messages of it were; stderr shows it while it lasts."""
    from rich.console import Console

    from bridge.display import markup

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _what, _count: None
        return
    with console.status("reading Pulsar") as status:
        yield lambda what, count: status.update(f"reading {markup(what)}: {count:,}")
