"""What an answer of Pulsar means, whichever client heard it, as this project's errors. Pure."""

from __future__ import annotations

from typing import Final

from bridge.errors import (
    DeniedError,
    FencedError,
    PulsebridgeError,
    RefusedError,
    TerminatedError,
    TransientError,
)

__all__ = ["NOT_ALLOWED", "NOT_LET_IN", "as_our_error", "name_of", "names_a_message"]

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

NOT_LET_IN: Final = "Pulsar does not accept our credentials"
NOT_ALLOWED: Final = "Pulsar does not allow it"


def name_of(error: object) -> str:
    """Return Pulsar's name of an exception, of a Result of its client or of a ``WireError``."""
    return getattr(error, "name", None) or type(error).__name__


def as_our_error(error: object, doing: str) -> PulsebridgeError:
    """Return the error of ours that an answer of Pulsar stands for; ``doing`` names the act and its object."""
    name = name_of(error)
    if name in _FENCED:
        return FencedError(f"{doing}: Pulsar answered {name}: another process holds it")
    if name == "AuthenticationError":
        return DeniedError(
            f"{doing}: {NOT_LET_IN}",
            remedy="check pulsar.token (or token_file) or pulsar.tls_certificate: another cluster's, or expired?",
        )
    if name == "AuthorizationError":
        return DeniedError(
            f"{doing}: {NOT_ALLOWED}",
            remedy="grant it to the role of pulsar.token or pulsar.tls_certificate (pulsar-admin namespaces "
            "grant-permission); `pulsebridge provision --dry-run` prints what each tier needs",
        )
    if name == "TopicTerminated":
        return TerminatedError(f"{doing}: the topic was terminated")
    if name in ("ProducerBlockedQuotaExceededError", "ProducerBlockedQuotaExceededException"):
        return TransientError(
            f"{doing}: its backlog quota is used up",
            remedy="let its subscriptions read on, or raise it (pulsar-admin namespaces set-backlog-quota)",
        )
    told = getattr(error, "text", "")
    answer = f"{doing}: Pulsar answered {name}" + (f", {told}" if told else "")
    return RefusedError(answer) if name in _REFUSED else TransientError(answer)


def names_a_message(error: object) -> bool:
    """Whether an answer of Pulsar is about the message that was sent, and not about its topic or the server."""
    return name_of(error) in ("MessageTooBig", "IncompatibleSchema")
