"""Runs the phases of the protocol handlers.

Each phase of a handler comes at most once, in the order INITIALIZE, ADVERTISE, START, STOP. A phase is over for all
handlers before the next begins. A handler whose INITIALIZE began is stopped exactly once, in the reverse order. After
the first failure, or ``stop``, only STOP follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum

import structlog

from bridge.errors import MissingExtraError, PulsebridgeError, TerminalError
from bridge.protocols.handler import Address, ProtocolHandler, Service
from bridge.protocols.listening import Listening

__all__ = ["Phase", "Running"]

log = structlog.get_logger("protocols")


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
