"""Loads the protocol handlers from the entry points of installed packages, and runs their phases.

Only the handlers that the settings name are imported.

Each phase of a handler comes at most once, in the order INITIALIZE, ADVERTISE, START, STOP. A phase is over for all
handlers before the next begins. A handler whose INITIALIZE began is stopped exactly once, in the reverse order. After
the first failure, or ``stop``, only STOP follows.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from importlib.metadata import EntryPoint, entry_points

import structlog

from bridge.errors import ConfigError, MissingExtraError, PulsebridgeError, TerminalError
from bridge.protocols.handler import Address, ProtocolHandler, Service
from bridge.protocols.listening import Listening
from bridge.settings.loading import HANDLERS_GROUP

__all__ = ["HANDLERS_GROUP", "Phase", "Running", "load_handlers"]

log = structlog.get_logger("protocols")


def load_handlers(names: Sequence[str], points: Iterable[EntryPoint] | None = None) -> list[ProtocolHandler]:
    """Return a new handler for each name, in this order. ``points`` default to those of installed packages.

    Raises ConfigError for a name that no package or several provide, TerminalError for an invalid handler.
    """
    by_name: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=HANDLERS_GROUP) if points is None else points:
        if all(point.value != known.value for known in by_name.get(point.name, [])):
            by_name.setdefault(point.name, []).append(point)
    problems = [p for name in names if (p := _name_problem(name, by_name)) is not None]
    if problems:
        raise ConfigError("; ".join(problems))
    return [_load(name, by_name[name][0]) for name in names]


def _name_problem(name: str, by_name: dict[str, list[EntryPoint]]) -> str | None:
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


class Phase(IntEnum):
    """A phase of a handler before STOP."""

    INITIALIZE = 1
    ADVERTISE = 2
    START = 3


class Running:
    """The handlers of one process. One thread calls the methods; any thread may call ``readiness``."""

    def __init__(self, handlers: Sequence[ProtocolHandler], listening: Listening) -> None:
        self.handlers = handlers
        """In the order of ``messaging_protocols``."""
        self.listening = listening
        self.data = {h.protocol_name: "" for h in handlers}
        """The advertised data by handler."""
        self.listeners: dict[str, list[Address]] = {name: [] for name in self.data}
        """The bound addresses by handler."""
        self.running = False
        """Whether every handler has started and none is being stopped."""
        self._over = 0  # the last phase that is over for all
        self._begun: list[ProtocolHandler] = []
        self._stopping = False

    def readiness(self) -> Mapping[str, Mapping[str, bool]]:
        """Return the readiness by handler and part."""
        return {h.protocol_name: dict(h.readiness()) for h in self.handlers}

    def go(self, service: Service, up_to: Phase) -> None:
        """Run the due phases, up to and including ``up_to``. Raises a handler's error; then call ``stop``."""
        for phase in Phase:
            if self._stopping or not self._over < phase <= up_to:
                continue
            for handler in self.handlers:
                log.debug("phase", protocol=handler.protocol_name, phase=phase.name)
                try:
                    self._do(phase, handler, service)
                except Exception as e:
                    self._stopping = True
                    raise _named(phase, handler.protocol_name, e) from e
            self._over = phase
        self.running = self._over == Phase.START and not self._stopping

    def _do(self, phase: Phase, handler: ProtocolHandler, service: Service) -> None:
        name = handler.protocol_name
        if phase is Phase.INITIALIZE:
            self._begun.append(handler)
            handler.initialize(service.settings)
        elif phase is Phase.ADVERTISE:
            self.data[name] = handler.protocol_data_to_advertise()
        else:
            handler.start(service)
            self.listeners[name] = self.listening.open(name, handler.listeners())

    def stop(self) -> None:
        """Stop the handlers that began, in reverse order, even if some raise."""
        self.running, self._stopping = False, True
        while self._begun:
            handler = self._begun.pop()
            self.listening.close(handler.protocol_name)
            try:
                handler.close()
            except Exception as e:  # noqa: BLE001 a third party's handler may fail in any way
                log.error(
                    "a protocol handler did not close cleanly. Action: report it to its authors",
                    protocol=handler.protocol_name,
                    why=f"{type(e).__name__}: {e}",
                )


def _named(phase: Phase, name: str, error: Exception) -> PulsebridgeError:
    """Return a Pulsebridge error: ``error`` itself, or one that names the failed phase."""
    if isinstance(error, PulsebridgeError):
        return error
    if isinstance(error, ModuleNotFoundError) and error.name:
        return MissingExtraError(
            f"the protocol {name!r} needs the Python package {error.name}, which is not installed",
            remedy=f'pip install "pulsebridge[{name}]", or install the requirements of its package',
        )
    return TerminalError(
        f"{phase.name} of the protocol handler {name!r} failed: {type(error).__name__}: {error}",
        remedy="report this fault of the handler to its authors",
    )
