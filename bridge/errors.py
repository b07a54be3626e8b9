"""The tree of errors. Each is Transient (try again) or Terminal (stop, and say what to do).

The third-party clients' own errors become these in the one module that imports each client.
"""

from __future__ import annotations

__all__ = [
    "ConfigError",
    "ContractError",
    "DataLossError",
    "DeniedError",
    "FencedError",
    "MissingExtraError",
    "PulsebridgeError",
    "RefusedError",
    "TerminalError",
    "TerminatedError",
    "TransientError",
    "UnreachableError",
]


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
    """Raised when the same call can succeed later without anybody doing anything."""


class UnreachableError(TransientError):
    """Raised when a server does not answer at all: it is down, or the way to it is closed."""


class TerminalError(PulsebridgeError):
    """Raised when trying again cannot help: somebody has to change something first."""


class ConfigError(TerminalError):
    """Raised when settings are refused; all problems are listed at once, each with its field path."""


class ContractError(TerminalError):
    """Raised when a message, row or offset does not have the shape that ``bridge.contract`` states."""


class RefusedError(TerminalError):
    """Raised when a server refused one request for good: too large, not authorised, no such topic."""


class DeniedError(RefusedError):
    """Raised when a server does not let this client in, or does not let it do this: credentials, certificate, rights.

    It says nothing against a message that was under way: with other credentials the same message is taken.
    """


class TerminatedError(RefusedError):
    """Raised when a topic takes no message any more: it was terminated, and that cannot be undone."""


class FencedError(TerminalError):
    """Raised when another process took over what this one owned; nothing may be acknowledged any more."""


class DataLossError(TerminalError):
    """Raised when entries that an offset promises are no longer in Pulsar."""


class MissingExtraError(TerminalError):
    """Raised when an optional part is not installed; the remedy is the install line."""
