"""Finds Pulsar policies that can delete unread data of a subscription (H13).

Converts the admin's answers for a namespace or a topic to findings, each with the command that fixes it. A
time-to-live acknowledges for every subscription, as does eviction at a quota. An expiration deletes subscriptions
without a connected consumer, such as that of a query that is down for a week.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from bridge.errors import TerminalError

__all__ = ["Finding", "backlog_limit", "expiry_error", "of_namespace", "of_topic"]

_BY_SIZE: Final = "destination_storage"
_EVICTS: Final = "consumer_backlog_eviction"


class Finding(NamedTuple):
    """One policy that can delete unread data of a query."""

    what: str
    command: str
    """The command by which an administrator of the tenant disables it."""


def of_namespace(name: str, ttl: Any, quotas: Any, expiration: Any) -> list[Finding]:
    """Return the findings for a namespace. Each argument is None if the namespace does not set it.

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
    """Return the findings for a topic's own policies; None if its namespace decides."""
    found = []
    if ttl:
        found.append(
            Finding(
                f"topic {name} has its own message TTL of {ttl} s",
                f"pulsar-admin topicPolicies remove-message-ttl {name}",
            )
        )
    for kind in _evicting(quotas):
        found.append(
            Finding(
                f"topic {name} has its own backlog quota, which evicts",
                f"pulsar-admin topicPolicies remove-backlog-quota {name} --type {kind}",
            )
        )
    return found


def backlog_limit(namespace: Any, topic: Any) -> int | None:
    """Return the bytes of backlog allowed to each partition of a topic, None without limit.

    A topic's own quota has precedence over its namespace's.
    """
    for quotas in (topic, namespace):
        of_size = quotas.get(_BY_SIZE) if isinstance(quotas, Mapping) else None
        if of_size:
            limit = int(of_size.get("limitSize", of_size.get("limit", -1)))
            return limit if limit > 0 else None
    return None


def expiry_error(found: Sequence[Finding]) -> TerminalError:
    """Return the error for a query on topics that can delete its unread data."""
    return TerminalError(
        "unread data of the query can be deleted: " + "; ".join(of.what for of in found),
        remedy=f"let an administrator run: {'; '.join(of.command for of in found)}; or set failOnDataLoss=false to "
        "continue with the remaining data in that case",
    )


def _evicting(quotas: Any) -> list[str]:
    quotas = quotas if isinstance(quotas, Mapping) else {}
    return sorted(str(kind) for kind, quota in quotas.items() if quota.get("policy") == _EVICTS)
