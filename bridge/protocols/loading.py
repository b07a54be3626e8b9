"""Loads the protocol handlers named in the settings from the entry points of installed packages.

It imports only the named ones, and decides whether a name or a handler is valid. ``bridge.protocols.running`` decides
the order of their phases.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from bridge.errors import ConfigError, TerminalError
from bridge.protocols.handler import ProtocolHandler

__all__ = ["HANDLERS_GROUP", "load_handlers"]

HANDLERS_GROUP: Final = "pulsebridge.protocol_handlers"


def load_handlers(names: Sequence[str], points: Iterable[EntryPoint] | None = None) -> list[ProtocolHandler]:
    """Return a new handler for each name, in this order. ``points`` default to those of installed packages.

    Raises ConfigError for a name that no package or several provide, TerminalError for an invalid handler.
    """
    by_name: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=HANDLERS_GROUP) if points is None else points:
        if all(point.value != known.value for known in by_name.get(point.name, [])):
            by_name.setdefault(point.name, []).append(point)
    problems = [p for name in names if (p := _problem(name, by_name)) is not None]
    if problems:
        raise ConfigError("; ".join(problems))
    return [_load(name, by_name[name][0]) for name in names]


def _problem(name: str, by_name: dict[str, list[EntryPoint]]) -> str | None:
    found = by_name.get(name, [])
    if len(found) == 1:
        return None
    if found:
        values = " and ".join(sorted(p.value for p in found))
        return f"messaging_protocols: {name!r} is provided twice, by {values}; uninstall one"
    near = difflib.get_close_matches(name, by_name, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"installed: {', '.join(sorted(by_name)) or 'none'}"
    return f"messaging_protocols: no protocol handler is called {name!r}; {hint}"


def _load(name: str, point: EntryPoint) -> ProtocolHandler:
    where = f"the protocol handler {name!r} ({point.value})"
    try:
        handler = point.load()()
    except Exception as e:
        raise TerminalError(
            f"{where} cannot be loaded: {type(e).__name__}: {e}",
            remedy="fix or uninstall its package, or remove it from messaging_protocols",
        ) from e
    if not isinstance(handler, ProtocolHandler):
        raise TerminalError(
            f"{where} is not a ProtocolHandler", remedy="derive it from bridge.protocols.ProtocolHandler"
        )
    if handler.protocol_name != name or not handler.accept(name):
        raise TerminalError(
            f"{where} is named {handler.protocol_name!r} or does not accept {name!r}",
            remedy="give its entry point the name of its protocol",
        )
    return handler
