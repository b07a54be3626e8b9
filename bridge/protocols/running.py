"""Runs the phases of the protocol handlers: the shell around ``bridge.protocols.lifecycle``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from bridge.errors import MissingExtraError, PulsebridgeError, TerminalError
from bridge.protocols.handler import Address, ProtocolHandler, Service
from bridge.protocols.lifecycle import Lifecycle, Phase, Step
from bridge.protocols.listening import Listening

__all__ = ["Running"]

log = structlog.get_logger("protocols")


@dataclass
class _Part:
    handler: ProtocolHandler
    data: str = ""
    listeners: list[Address] = field(default_factory=list)


class Running:
    """The handlers of one process. One thread calls all but ``readiness``, ``data`` and ``listeners``."""

    def __init__(self, handlers: Sequence[ProtocolHandler], listening: Listening) -> None:
        self._parts = {h.protocol_name: _Part(h) for h in handlers}
        self._life = Lifecycle(tuple(self._parts))
        self.listening = listening

    @property
    def running(self) -> bool:
        """Whether every handler has started and none is being stopped."""
        return self._life.running

    @property
    def handlers(self) -> list[ProtocolHandler]:
        """The handlers, in the order of ``messaging_protocols``."""
        return [part.handler for part in self._parts.values()]

    @property
    def data(self) -> dict[str, str]:
        """The advertised data of each handler."""
        return {name: part.data for name, part in self._parts.items()}

    @property
    def listeners(self) -> dict[str, list[Address]]:
        """The bound addresses, by handler."""
        return {name: list(part.listeners) for name, part in self._parts.items()}

    def readiness(self) -> Mapping[str, Mapping[str, bool]]:
        """Return the readiness by handler and part."""
        return {name: dict(part.handler.readiness()) for name, part in self._parts.items()}

    def go(self, service: Service, up_to: Phase) -> None:
        """Run the due phases, up to and including ``up_to``. Raises a handler's error; then call ``stop``."""
        while (step := self._life.next(up_to)) is not None:
            try:
                self._do(step, service)
            except BaseException as e:
                self._life.failed()
                if isinstance(e, Exception):
                    raise _named(step, e) from e
                raise
            self._life.done()

    def _do(self, step: Step, service: Service) -> None:
        part = self._parts[step.name]
        log.debug("phase", protocol=step.name, phase=step.phase.name)
        if step.phase is Phase.INITIALIZE:
            part.handler.initialize(service.settings)
        elif step.phase is Phase.ADVERTISE:
            part.data = part.handler.protocol_data_to_advertise()
        else:
            part.handler.start(service)
            part.listeners = self.listening.open(step.name, part.handler.listeners())

    def stop(self) -> None:
        """Stop the handlers that began, in reverse order, even if some raise."""
        self._life.stop()
        while (step := self._life.next()) is not None:
            self.listening.close(step.name)
            try:
                self._parts[step.name].handler.close()
            except Exception as e:  # noqa: BLE001 a third party's handler may fail in any way
                log.error(
                    "a protocol handler did not close cleanly. Action: report it to its authors",
                    protocol=step.name,
                    why=f"{type(e).__name__}: {e}",
                )
                self._life.failed()
            else:
                self._life.done()


def _named(step: Step, error: Exception) -> PulsebridgeError:
    """Return a Pulsebridge error: ``error`` itself, or one that names the failed phase."""
    if isinstance(error, PulsebridgeError):
        return error
    if isinstance(error, ModuleNotFoundError) and error.name:
        return MissingExtraError(
            f"the protocol {step.name!r} needs the Python package {error.name}, which is not installed",
            remedy=f'pip install "pulsebridge[{step.name}]", or install the requirements of its package',
        )
    return TerminalError(
        f"{step.phase.name} of the protocol handler {step.name!r} failed: {type(error).__name__}: {error}",
        remedy="report this fault of the handler to its authors",
    )
