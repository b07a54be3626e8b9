"""Creates or verifies the resources of a tier in Pulsar, by the steps of the plan.

``pulsar.provision`` decides. ``create`` does every step; each is idempotent, so that several processes may do it at
once. ``verify`` changes nothing and fails with the missing commands. ``off`` sends the admin no request.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from bridge.contract import (
    COMMANDS_TOPIC,
    CURSORS_TOPIC,
    PUSH_SUBSCRIPTION,
    RESUME_TOPIC,
    Position,
    namespace_of,
    partition_name,
    partition_names,
)
from bridge.errors import ContractError, DeniedError, TerminalError, TransientError
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import MessageId, PulsarClient, our_errors
from bridge.pulsar.provisioning_plan import (
    COMPACTION,
    COMPACTION_THRESHOLD_BYTES,
    CURSOR_RETENTION,
    Needs,
    Step,
    TopicNeed,
    alerts_need,
    compact_step,
    grant_steps,
    group_needs,
    namespace_steps,
    policies_lack,
    push_needs,
    rest_path,
    subscription_path,
    subscription_step,
    tenant_step,
    topic_steps,
)
from bridge.pulsar.tokens import role_of
from bridge.settings.pulsar import PulsarSettings

__all__ = [
    "COMPACTION_THRESHOLD_BYTES",
    "CURSOR_RETENTION",
    "Found",
    "await_pulsar",
    "carry_out",
    "commands_ready",
    "create_topic",
    "existing_commands",
    "groups_ready",
    "log_unchecked",
    "look",
    "move_retention_subscription",
    "provision_alerts",
    "provision_commands",
    "try_reading",
    "try_writing",
    "verify",
]

_WARN_S: Final = 20.0
log = structlog.get_logger("provisioning")


@dataclass
class Found:
    """The result of ``look``."""

    missing: list[Step] = field(default_factory=list)
    """Steps to do."""
    unchecked: list[str] = field(default_factory=list)
    """Resources that this role may not read."""


def provision_commands(admin: PulsarAdmin, commands_topic: str | None = None) -> int:
    """Create or verify the resources of push; return the number of partitions of the commands topic.

    1. The namespaces with retention, no time-to-live, producers blocked at the quota.
    2. Receipts and dead letters; cursors, and members and roster of the groups, with a compaction threshold, a
       retention subscription, and a first compaction; the commands to groups with their subscription.
    3. Commands, and on each partition the push tier's subscription at earliest.

    Raises TransientError if Pulsar's admin cannot be reached, DeniedError if it does not allow a step. Raises
    TerminalError if ``verify`` finds something missing, ContractError if commands and cursors have unequal numbers of
    partitions.
    """
    settings = admin.settings
    needs = push_needs(settings, commands_topic)
    if settings.provision == "create":
        admin.provision_namespaces()
        for need in needs.topics:
            create_topic(admin, need)
    else:
        log_unchecked(verify(admin, needs))
    cursors = settings.system_topic(CURSORS_TOPIC)
    commands = commands_topic or settings.system_topic(COMMANDS_TOPIC)
    partitions = admin.partition_count(commands)
    for other, what in (
        (cursors, "a cursor is"),
        (settings.system_topic(RESUME_TOPIC), "a request to resume is"),
    ):
        count = admin.partition_count(other)
        if partitions != count:
            raise ContractError(
                f"{commands} has {partitions} partitions and {other} has {count}",
                remedy=f"{what} in the partition of its device: delete the wrong topic, or use another "
                "pulsar.system_namespace",
            )
    return partitions


def provision_alerts(settings: PulsarSettings, subscription: str) -> None:
    """Retain all alerts for their table. Its flow may start long after the writers of alerts.

    Raises TransientError if Pulsar's admin cannot be reached, DeniedError if it does not allow that, TerminalError if
    ``verify`` finds it missing.
    """
    if settings.provision == "off":
        return
    need = alerts_need(settings, subscription)
    with PulsarAdmin(settings) as admin:
        if _partitions_with(admin, need.topic, subscription):
            return
        if settings.provision == "verify":
            raise TerminalError(
                f"{need.topic} does not exist, or has no subscription {subscription!r} that retains alerts for their table",
                remedy="let an operator run what `pulsebridge provision --dry-run` prints, with streaming.alerts set",
            )
        admin.provision_namespaces()
        create_topic(admin, need)


def create_topic(admin: PulsarAdmin, need: TopicNeed) -> None:
    """Create a topic, its subscriptions and its compaction, as far as they are missing. Raises DeniedError."""
    topic, *rest = topic_steps(need)
    admin.do(topic)
    # The existing number of partitions counts, not the configured one.
    partitions = [partition_name(need.topic, n) for n in range(admin.partition_count(need.topic))]
    for step in rest:
        if "create-subscription" not in step.command:
            admin.do(step)
    for partition in partitions:
        for name in need.subscriptions:
            admin.do(subscription_step(partition, name))
        if need.compacted:
            admin.do(compact_step(partition))


def await_pulsar(settings: PulsarSettings, stop: threading.Event) -> None:
    """Wait until Pulsar's admin answers, because it may start after the caller.

    Returns early if a stop was requested. Raises RefusedError if the admin refuses access.
    """
    began, warned = time.monotonic(), False
    with PulsarAdmin(settings) as admin:
        while not stop.is_set():
            try:
                admin.cluster()
                return
            except TransientError as e:
                if not warned and time.monotonic() - began > _WARN_S:
                    warned = True
                    log.warning("Pulsar does not answer yet. Action: start it", why=e.what)
            stop.wait(0.25)


def existing_commands(settings: PulsarSettings) -> int:
    """Return the number of partitions of the commands topic, by a look-up alone.

    Raises TerminalError if the topic does not exist, TransientError if Pulsar cannot be reached.
    """
    topic = settings.system_topic(COMMANDS_TOPIC)
    with PulsarClient(settings) as client:
        partitions = client.partitioned(topic)
    if not partitions:
        raise TerminalError(
            f"{topic} does not exist, or has no partitions, and pulsar.provision is off",
            remedy="let an operator run what `pulsebridge provision --dry-run` prints",
        )
    return len(partitions)


def commands_ready(admin: PulsarAdmin, commands_topic: str | None = None) -> int:
    """Return the number of partitions if `provision_commands` is complete already, else 0.

    Provisioning makes the subscription of the last partition last, so two requests suffice.
    """
    return _partitions_with(admin, commands_topic or admin.settings.system_topic(COMMANDS_TOPIC), PUSH_SUBSCRIPTION)


def _partitions_with(admin: PulsarAdmin, topic: str, subscription: str) -> int:
    """Return a topic's number of partitions if the last one has the subscription, else 0."""
    partitions = admin.partition_count(topic)
    if not partitions:
        return 0
    path = f"/{rest_path(partition_name(topic, partitions - 1))}/subscriptions"
    return partitions if subscription in (admin.request("GET", path, accept=(404,)) or []) else 0


def groups_ready(admin: PulsarAdmin) -> bool:
    """Return whether the topics of commands to groups exist, with their subscriptions."""
    for need in group_needs(admin.settings):
        if not admin.partition_count(need.topic):
            return False
        path = f"/{rest_path(partition_name(need.topic, 0))}/subscriptions"
        if not set(need.subscriptions) <= set(admin.request("GET", path, accept=(404,)) or []):
            return False
    return True


def carry_out(admin: PulsarAdmin, steps: Iterable[Step], done: Callable[[Step], None] = lambda _step: None) -> None:
    """Do the steps in order; ``done`` is called after each. An existing tenant is left unchanged."""
    for step in steps:
        if step.command[0] == "tenants":
            tenant = step.command[-1]
            if admin.has_tenant(tenant):
                continue
            step = tenant_step(tenant, admin.clusters())
        admin.do(step)
        done(step)


def try_writing(settings: PulsarSettings, topics: Iterable[str]) -> None:
    """Open and close a producer on each topic. So a missing right shows before the first message.

    A missing topic is skipped. Raises DeniedError with the missing grant.
    """
    with PulsarClient(settings) as client:
        for topic in topics:
            partitions = client.partitioned(topic)
            if partitions:
                with our_errors(f"closing the producer on {partitions[0]}"):
                    client.producer(partitions[0], batching=False).close()


def try_reading(settings: PulsarSettings, topics: Iterable[str]) -> None:
    """Open and close a reader at the end of each topic; this consumes no message.

    Raises DeniedError with the missing grant.
    """
    with PulsarClient(settings) as client:
        for topic in topics:
            partitions = client.partitioned(topic)
            if partitions:
                with our_errors(f"closing the reader of {partitions[0]}"):
                    client.reader(partitions[0], MessageId.latest).close()


# --- verifying ------------------------------------------------------------------------------------------------


def verify(admin: PulsarAdmin, needs: Needs) -> list[str]:
    """Return the resources that this role may not read. Raises TerminalError with all missing commands."""
    found = look(admin, needs)
    if found.missing:
        count = "1 thing is" if len(found.missing) == 1 else f"{len(found.missing)} things are"
        lines = "".join(f"\n  {step.shell}  # {step.why}" for step in found.missing)
        raise TerminalError(
            f"{count} missing in Pulsar for {needs.tier}; an operator must run these commands, and restart it:{lines}"
        )
    return found.unchecked


def log_unchecked(unchecked: Sequence[str]) -> None:
    """Log the resources that were assumed to exist."""
    if unchecked:
        log.info("resources are not verified, this role may not read them", what=list(unchecked))


def look(admin: PulsarAdmin, needs: Needs) -> Found:
    """Compare the existing resources with the needs of a tier, without a change.

    Raises TransientError, or DeniedError with the least rights of the tier if not even a look-up is allowed.
    """
    found = Found()
    absent = {n for n in needs.namespaces if not _compare_namespace(admin, n, found)}
    for need in needs.topics:
        if namespace_of(need.topic) in absent:
            found.missing += topic_steps(need)
            continue
        try:
            _compare_topic(admin, need, found)
        except DeniedError as e:
            if not _rights(e):
                raise
            token = admin.settings.token
            role = None if token is None else role_of(token.get_secret_value())
            grants = grant_steps(admin.settings, {needs.tier: role or "ROLE"})
            lines = "; ".join(step.shell for step in grants)
            raise DeniedError(e.what, remedy=f"{needs.tier} needs at least: {lines}") from e
    return found


def _compare_namespace(admin: PulsarAdmin, namespace: str, found: Found) -> bool:
    """Return whether the namespace exists, as far as this role may know."""
    try:
        policies = admin.request("GET", f"/namespaces/{namespace}", accept=(404,))
    except DeniedError as e:
        if not _rights(e):
            raise
        found.unchecked.append(f"policies of {namespace} (its tenant's administrator may read them)")
        return True
    if policies is not None:
        found.missing += policies_lack(namespace, policies, admin.settings)
        return True
    tenant = namespace.split("/")[0]
    step = tenant_step(tenant)
    if step not in found.missing and not admin.has_tenant(tenant):
        found.missing.append(step)
    found.missing += namespace_steps(namespace, admin.settings)
    return False


def _compare_topic(admin: PulsarAdmin, need: TopicNeed, found: Found) -> None:
    metadata = admin.request("GET", f"/{rest_path(need.topic)}/partitions", accept=(404,))
    if metadata is None:
        found.missing += topic_steps(need)
        return
    partitions = partition_names(need.topic, int(metadata["partitions"]))
    for partition in partitions if need.subscriptions else ():
        try:
            existing: Any = admin.request("GET", f"/{rest_path(partition)}/subscriptions", accept=(404,)) or []
        except DeniedError as e:
            if not _rights(e):
                raise
            found.unchecked.append(f"subscriptions of {partition} (needs consume)")
            continue
        found.missing += [subscription_step(partition, s) for s in need.subscriptions if s not in existing]
    if need.compacted:
        _compare_compaction(admin, need, found)


def _compare_compaction(admin: PulsarAdmin, need: TopicNeed, found: Found) -> None:
    try:
        threshold = admin.request("GET", f"/{rest_path(need.topic)}/compactionThreshold?applied=true")
    except DeniedError as e:
        if not _rights(e):
            raise
        found.unchecked.append(f"compaction threshold of {need.topic} (its tenant's administrator may read it)")
        return
    if not threshold:
        found.missing += [s for s in topic_steps(need) if "set-compaction-threshold" in s.command]


def _rights(error: DeniedError) -> bool:
    """Whether the role is known but lacks the right. Other requests may be allowed."""
    return "does not allow" in error.what


# --- retention subscriptions of compacted topics --------------------------------------------------------------


def move_retention_subscription(admin: PulsarAdmin, partition: str, subscription: str) -> None:
    """Move the retention subscription of a compacted partition to the last compaction's horizon. So Pulsar trims it.

    Only for records that are renewed: those in the compacted view alone may be lost (``bridge/push/holds.py``). During
    a compaction this has no effect, because Pulsar then reports the oldest remaining message as the horizon.
    """
    cursors = admin.internal_stats(partition)["cursors"]
    if COMPACTION not in cursors or subscription not in cursors:
        return
    horizon = Position.parse(cursors[COMPACTION]["markDeletePosition"])
    if horizon > Position.parse(cursors[subscription]["markDeletePosition"]) and horizon.entry >= 0:
        admin.request(
            "POST",
            f"{subscription_path(partition, subscription)}/resetcursor",
            body={"ledgerId": horizon.ledger, "entryId": horizon.entry, "partitionIndex": -1},
        )
