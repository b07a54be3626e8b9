"""The tree of errors. Each is Transient (retry) or Terminal (stop, with a remedy).

Each third-party client is imported in one module, which converts the client's errors to these.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "EXIT_FAILED",
    "EXIT_INTERRUPTED",
    "EXIT_USAGE",
    "ConfigError",
    "ContractError",
    "DataLossError",
    "DeniedError",
    "FencedError",
    "ForbiddenError",
    "MissingExtraError",
    "PulsebridgeError",
    "RefusedError",
    "TerminalError",
    "TerminatedError",
    "TransientError",
    "UnreachableError",
]

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
"""The exit codes of the command line, except 0: an error, wrong use or settings, Ctrl-C."""


class PulsebridgeError(Exception):
    """Base of every error that Pulsebridge raises on purpose: what failed, on which value, and the remedy."""

    def __init__(self, what: str, *, remedy: str | None = None) -> None:
        self.what = what
        self.remedy = remedy
        super().__init__(what if remedy is None else f"{what} — {remedy}")

    def __reduce__(self) -> tuple[object, ...]:
        # Errors travel between Spark's Python workers by pickle; keyword arguments would be lost.
        return (_rebuild, (type(self), self.what, self.remedy))


def _rebuild(kind: type[PulsebridgeError], what: str, remedy: str | None) -> PulsebridgeError:
    return kind(what, remedy=remedy)


class TransientError(PulsebridgeError):
    """Raised if the same call can succeed later without an action of an operator."""


class UnreachableError(TransientError):
    """Raised if a server does not answer: it is down, or the network to it is interrupted."""


class TerminalError(PulsebridgeError):
    """Raised if a retry cannot succeed until an operator changes something."""


class ConfigError(TerminalError):
    """Raised if settings are invalid. Lists all problems, each with its field path."""


class ContractError(TerminalError):
    """Raised if a message, row or offset does not have the form that ``bridge.contract`` defines."""


class RefusedError(TerminalError):
    """Raised if a server permanently refused one request: too large, not authorised, no such topic."""


class DeniedError(RefusedError):
    """Raised if a server refuses this client or its operation: credentials, certificate, rights.

    The message in flight is valid: the server accepts it with other credentials.
    """


class ForbiddenError(DeniedError):
    """Raised if a server accepts the credentials of this client, but the role lacks the right for the operation."""


class TerminatedError(RefusedError):
    """Raised if a topic was terminated: it accepts no message, and that cannot be undone."""


class FencedError(TerminalError):
    """Raised if another process took over the ownership; this one must not acknowledge any more."""


class DataLossError(TerminalError):
    """Raised if Pulsar has deleted entries that an offset covers."""


class MissingExtraError(TerminalError):
    """Raised if an optional part is not installed; the remedy is the install command."""
