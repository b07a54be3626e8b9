"""What in Pulsar's policies consumes the data that a subscription holds (H13).

Pure: what the admin answers for a namespace or a topic goes in, findings with the command that mends each come out. A
time-to-live acknowledges for every subscription, eviction does at a quota, and an expiration deletes subscriptions
that nobody is connected to: a query that is down for a week.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from bridge.errors import TerminalError

__all__ = ["Finding", "expiry_error", "most_held", "of_namespace", "of_topic"]

_BY_SIZE: Final = "destination_storage"
_EVICTS: Final = "consumer_backlog_eviction"


class Finding(NamedTuple):
    """One policy that can delete under a query what it has not read."""

    what: str
    command: str
    """What an administrator of the tenant runs to switch it off."""


def of_namespace(name: str, ttl: Any, quotas: Any, expiration: Any) -> list[Finding]:
    """Return what a namespace's policies say; each argument is None where it has none of its own.

    ``ttl`` is in seconds, ``expiration`` of subscriptions in minutes.
    """
    found = []
    if ttl:
        found.append(
            Finding(
                f"message TTL of namespace {name} is {ttl} s",
                f"pulsar-admin namespaces set-message-ttl {name} --messageTTL 0",
            )
        )
    for kind in _evicting(quotas):
        found.append(
            Finding(
                f"backlog quota of namespace {name} evicts",
                f"pulsar-admin namespaces remove-backlog-quota {name} --type {kind}",
            )
        )
    if expiration:
        found.append(
            Finding(
                f"namespace {name} deletes subscriptions that are not used for {expiration} min",
                f"pulsar-admin namespaces set-subscription-expiration-time {name} --time 0",
            )
        )
    return found


def of_topic(name: str, ttl: Any, quotas: Any) -> list[Finding]:
    """Return what a topic's own policies say; None where its namespace decides."""
    found = []
    if ttl:
        found.append(
            Finding(
                f"topic {name} has a message TTL of {ttl} s of its own",
                f"pulsar-admin topicPolicies remove-message-ttl {name}",
            )
        )
    for kind in _evicting(quotas):
        found.append(
            Finding(
                f"topic {name} has a backlog quota of its own that evicts",
                f"pulsar-admin topicPolicies remove-backlog-quota {name} --type {kind}",
            )
        )
    return found


def most_held(namespace: Any, topic: Any) -> int | None:
    """Return how many bytes of backlog the quotas allow to each partition of a topic, None without a limit.

    A topic's own quota stands before its namespace's.
    """
    for quotas in (topic, namespace):
        of_size = quotas.get(_BY_SIZE) if isinstance(quotas, Mapping) else None
        if of_size:
            limit = int(of_size.get("limitSize", of_size.get("limit", -1)))
            return limit if limit > 0 else None
    return None


def expiry_error(found: Sequence[Finding]) -> TerminalError:
    """Return the error for a query that would begin on topics which delete what it holds."""
    return TerminalError(
        "what the query has not read can be deleted under it: " + "; ".join(of.what for of in found),
        remedy=f"let an administrator run: {'; '.join(of.command for of in found)}; or set failOnDataLoss=false to go "
        "on with what is left when it happens",
    )


def _evicting(quotas: Any) -> list[str]:
    quotas = quotas if isinstance(quotas, Mapping) else {}
    return sorted(str(kind) for kind, quota in quotas.items() if quota.get("policy") == _EVICTS)
