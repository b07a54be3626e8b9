"""Maps answers of Pulsar, of either client, to this project's errors."""

from __future__ import annotations

from typing import Final

from bridge.errors import (
    DeniedError,
    FencedError,
    ForbiddenError,
    PulsebridgeError,
    RefusedError,
    TerminatedError,
    TransientError,
)

__all__ = ["as_our_error", "name_of", "names_a_message"]

_REFUSED: Final = (
    "InvalidTopicName",
    "MessageTooBig",
    "IncompatibleSchema",
    "NotAllowedError",
    "InvalidConfiguration",
    "InvalidUrl",
    "TopicNotFound",
)
_FENCED: Final = ("ProducerFenced", "ProducerBusy", "ConsumerBusy")


def name_of(error: object) -> str:
    """Return Pulsar's name of an exception, of its client's Result or of a ``WireError``."""
    return getattr(error, "name", None) or type(error).__name__


def as_our_error(error: object, operation: str) -> PulsebridgeError:
    """Return our error for an answer of Pulsar; ``operation`` names the operation and its object."""
    name = name_of(error)
    if name in _FENCED:
        return FencedError(f"{operation}: Pulsar answered {name}: another process owns it")
    if name == "AuthenticationError":
        return DeniedError(
            f"{operation}: Pulsar does not accept our credentials",
            remedy="check pulsar.token (or token_file), pulsar.password, pulsar.oauth2 or pulsar.tls_certificate: another "
            "cluster's, or expired?",
        )
    if name == "AuthorizationError":
        return ForbiddenError(
            f"{operation}: Pulsar does not allow it",
            remedy="grant it to the role of these credentials (pulsar-admin namespaces grant-permission); "
            "`pulsebridge provision --dry-run` prints what each tier needs",
        )
    if name == "TopicTerminated":
        return TerminatedError(f"{operation}: the topic was terminated")
    if name in ("ProducerBlockedQuotaExceededError", "ProducerBlockedQuotaExceededException"):
        return TransientError(
            f"{operation}: its backlog quota is used up",
            remedy="let its subscriptions read on, or raise it (pulsar-admin namespaces set-backlog-quota)",
        )
    text = getattr(error, "text", "")
    answer = f"{operation}: Pulsar answered {name}" + (f", {text}" if text else "")
    return RefusedError(answer) if name in _REFUSED else TransientError(answer)


def names_a_message(error: object) -> bool:
    """Whether an answer of Pulsar concerns the sent message, not its topic or the server."""
    return name_of(error) in ("MessageTooBig", "IncompatibleSchema")
