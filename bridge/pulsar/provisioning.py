"""Creates or verifies the resources of a tier in Pulsar, by the steps of the plan.

``pulsar.provision`` decides. ``create`` does every step; each is idempotent, so that several processes may do it at
once. ``verify`` changes nothing and fails with the missing commands. ``off`` sends the admin no request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import structlog

from bridge.contract import (
    COMMANDS_TOPIC,
    CURSORS_TOPIC,
    RESUME_TOPIC,
    Position,
    namespace_of,
    partition_name,
    partition_names,
)
from bridge.errors import ContractError, ForbiddenError, TerminalError
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import LATEST, PulsarClient
from bridge.pulsar.dial import role_of
from bridge.pulsar.provisioning_plan import (
    COMPACTION,
    Needs,
    Step,
    TopicNeed,
    compact_step,
    grant_steps,
    namespace_steps,
    policies_lack,
    push_needs,
    rest_path,
    subscription_path,
    subscription_step,
    tenant_step,
    threshold_step,
    topic_steps,
)
from bridge.pulsar.sending import close_quietly
from bridge.settings.pulsar import PulsarSettings

__all__ = [
    "Found",
    "create_topic",
    "existing_commands",
    "log_unchecked",
    "look",
    "move_retention_subscription",
    "partitions_ready",
    "provision_commands",
    "try_rights",
    "verify",
]

log = structlog.get_logger("provisioning")

_TERMINATED: Final = "Terminated"
"""State of the ledger of a partition that accepts no more messages."""


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
    if settings.command_generation and not partitions_ready(admin, needs.topics[-1]):
        raise TerminalError(
            f"generation {settings.command_generation} of the commands is not open",
            remedy="stop push, and run `pulsebridge commands move` to these settings",
        )
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
    state = admin.internal_stats(partition_name(commands, 0)).get("state") if partitions else ""
    if state == _TERMINATED:
        raise TerminalError(
            f"{commands} was terminated: it accepts no commands",
            remedy="use the settings to which `pulsebridge commands move` has moved the commands",
        )
    return partitions


def create_topic(admin: PulsarAdmin, need: TopicNeed) -> None:
    """Create a topic, its subscriptions and its compaction, as far as they are missing. Raises DeniedError.

    A partition that was compacted before is not compacted again: with a million records that takes Pulsar half a minute
    of two cores, while the process that starts reads the same partition.
    """
    for step in topic_steps(replace(need, subscriptions=())):
        admin.do(step)
    # The existing number of partitions counts, not the configured one.
    for number in range(admin.partition_count(need.topic)):
        partition = partition_name(need.topic, number)
        for name in need.subscriptions:
            admin.do(subscription_step(partition, name))
        if need.compacted and COMPACTION not in admin.subscriptions(partition):
            admin.do(compact_step(partition))


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


def partitions_ready(admin: PulsarAdmin, need: TopicNeed) -> int:
    """Return a topic's number of partitions if it and its subscriptions exist, else 0.

    Provisioning makes the subscriptions of the last partition last, so two requests suffice. The commands topic is the
    last of all that push needs.
    """
    partitions = admin.partition_count(need.topic)
    if not partitions:
        return 0
    existing = admin.subscriptions(partition_name(need.topic, partitions - 1))
    return partitions if set(need.subscriptions) <= set(existing) else 0


def try_rights(settings: PulsarSettings, *, write: Iterable[str] = (), read: Iterable[str] = ()) -> None:
    """Open and close a producer on topics to ``write``, and a reader at the end of topics to ``read``.

    So a missing right shows before the first message. It consumes no message and skips a missing topic. Raises
    DeniedError with the missing grant.
    """
    with PulsarClient(settings) as client:
        for topics, opened in ((write, client.producer), (read, partial(client.reader, start=LATEST))):
            for partition in [name for topic in topics for name in client.partitioned(topic)[:1]]:
                close_quietly(opened(partition))


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
        except ForbiddenError as e:
            grants = grant_steps(admin.settings, {needs.tier: role_of(admin.settings) or "ROLE"})
            lines = "; ".join(step.shell for step in grants)
            raise ForbiddenError(e.what, remedy=f"{needs.tier} needs at least: {lines}") from e
    return found


def _compare_namespace(admin: PulsarAdmin, namespace: str, found: Found) -> bool:
    """Return whether the namespace exists, as far as this role may know."""
    try:
        policies = admin.request("GET", f"/namespaces/{namespace}", accept=(404,))
    except ForbiddenError:
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
            existing = admin.subscriptions(partition)
        except ForbiddenError:
            found.unchecked.append(f"subscriptions of {partition} (needs consume)")
            continue
        found.missing += [subscription_step(partition, s) for s in need.subscriptions if s not in existing]
    if need.compacted:
        _compare_compaction(admin, need, found)


def _compare_compaction(admin: PulsarAdmin, need: TopicNeed, found: Found) -> None:
    try:
        threshold = admin.request("GET", f"/{rest_path(need.topic)}/compactionThreshold?applied=true")
    except ForbiddenError:
        found.unchecked.append(f"compaction threshold of {need.topic} (its tenant's administrator may read it)")
        return
    if not threshold:
        found.missing.append(threshold_step(need.topic))


# --- retention subscriptions of compacted topics --------------------------------------------------------------


def move_retention_subscription(admin: PulsarAdmin, partition: str, subscription: str) -> None:
    """Move the retention subscription of a compacted partition to the last compaction's horizon. So Pulsar trims it.

    Only for records that are renewed: those in the compacted view alone may be lost (``bridge/pulsar/compaction.py``). During
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
