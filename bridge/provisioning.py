"""Brings Pulsar to what a tier needs, or looks whether it is there: the plan's steps, done or compared.

``pulsar.provision`` decides: ``create`` does every step, each idempotent, so that several processes may do it at once;
``verify`` changes nothing and fails with the commands that are missing; ``off`` asks the admin for nothing at all.
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
from bridge.provisioning_plan import (
    COMPACTION,
    COMPACTION_THRESHOLD_BYTES,
    CURSOR_HOLD,
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
from bridge.pulsar_admin import PulsarAdmin
from bridge.pulsar_client import MessageId, PulsarClient, our_errors
from bridge.settings.pulsar import PulsarSettings
from bridge.tokens import role_of

__all__ = [
    "COMPACTION_THRESHOLD_BYTES",
    "CURSOR_HOLD",
    "Found",
    "await_pulsar",
    "carry_out",
    "commands_ready",
    "create_topic",
    "existing_commands",
    "groups_ready",
    "look",
    "move_hold",
    "provision_alerts",
    "provision_commands",
    "say_unchecked",
    "try_reading",
    "try_writing",
    "verify",
]

_WARN_S: Final = 20.0
log = structlog.get_logger("provisioning")


@dataclass
class Found:
    """What ``look`` found out."""

    missing: list[Step] = field(default_factory=list)
    """What has to be done."""
    unchecked: list[str] = field(default_factory=list)
    """What this role may not see."""


def provision_commands(admin: PulsarAdmin, commands_topic: str | None = None) -> int:
    """Create, or verify, what commands need and return the number of partitions of the commands topic.

    1. The namespaces with retention, no time-to-live, producers held at quota.
    2. Receipts and dead letters; cursors, and members and roster of the groups, with a compaction threshold, their own
       hold, and compaction tried once; the commands to groups with their subscription.
    3. Commands, and on each partition the push tier's subscription at earliest.

    Raises TransientError when Pulsar's admin cannot be reached, DeniedError when it does not allow a step,
    TerminalError when ``verify`` misses something, ContractError when commands and cursors have unequal numbers of
    partitions.
    """
    settings = admin.settings
    needs = push_needs(settings, commands_topic)
    if settings.provision == "create":
        admin.provision_namespaces()
        for need in needs.topics:
            create_topic(admin, need)
    else:
        say_unchecked(verify(admin, needs))
    cursors = settings.system_topic(CURSORS_TOPIC)
    commands = commands_topic or settings.system_topic(COMMANDS_TOPIC)
    partitions = admin.partition_count(commands)
    for other, what in (
        (cursors, "a cursor stands"),
        (settings.system_topic(RESUME_TOPIC), "a request to resume stands"),
    ):
        count = admin.partition_count(other)
        if partitions != count:
            raise ContractError(
                f"{commands} has {partitions} partitions and {other} has {count}",
                remedy=f"{what} in the partition of its device: delete the one that is wrong, or use another "
                "pulsar.system_namespace",
            )
    return partitions


def provision_alerts(settings: PulsarSettings, subscription: str) -> None:
    """Let Pulsar keep all alerts until they are in the table, whose flow may start long after those that write them.

    Raises TransientError when Pulsar's admin cannot be reached, DeniedError when it does not allow that, TerminalError when
    ``verify`` misses it.
    """
    if settings.provision == "off":
        return
    need = alerts_need(settings, subscription)
    with PulsarAdmin(settings) as admin:
        if _held(admin, need.topic, subscription):
            return
        if settings.provision == "verify":
            raise TerminalError(
                f"{need.topic} is not there, or has no subscription {subscription!r} that keeps alerts for their table",
                remedy="let an operator run what `pulsebridge provision --dry-run` prints, with streaming.rules set",
            )
        admin.provision_namespaces()
        create_topic(admin, need)


def create_topic(admin: PulsarAdmin, need: TopicNeed) -> None:
    """Create a topic with its holds and its compaction, as far as it is not there. Raises DeniedError."""
    topic, *rest = topic_steps(need)
    admin.do(topic)
    # The number it has decides, not the number that we would have given it.
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
    """Wait until Pulsar's admin answers: it may be started after the caller.

    Returns early when a stop was requested. Raises RefusedError when the admin refuses access.
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
    """Return the number of partitions of the commands topic, asking for nothing but a look-up.

    Raises TerminalError when it is not there, TransientError when Pulsar cannot be reached.
    """
    topic = settings.system_topic(COMMANDS_TOPIC)
    with PulsarClient(settings) as client:
        partitions = client.partitioned(topic)
    if not partitions:
        raise TerminalError(
            f"{topic} is not there, or has no partitions, and pulsar.provision is off",
            remedy="let an operator run what `pulsebridge provision --dry-run` prints",
        )
    return len(partitions)


def commands_ready(admin: PulsarAdmin, commands_topic: str | None = None) -> int:
    """Return the number of partitions when all of `provision_commands` is there already, else 0.

    Provisioning ends with the subscription of the last partition, so two requests tell.
    """
    return _held(admin, commands_topic or admin.settings.system_topic(COMMANDS_TOPIC), PUSH_SUBSCRIPTION)


def _held(admin: PulsarAdmin, topic: str, subscription: str) -> int:
    """Return the number of partitions of a topic if a subscription is on the last of them, else 0."""
    partitions = admin.partition_count(topic)
    if not partitions:
        return 0
    path = f"/{rest_path(partition_name(topic, partitions - 1))}/subscriptions"
    return partitions if subscription in (admin.request("GET", path, accept=(404,)) or []) else 0


def groups_ready(admin: PulsarAdmin) -> bool:
    """Return whether the topics of commands to groups are there, with what holds their messages."""
    for need in group_needs(admin.settings):
        if not admin.partition_count(need.topic):
            return False
        path = f"/{rest_path(partition_name(need.topic, 0))}/subscriptions"
        if not set(need.subscriptions) <= set(admin.request("GET", path, accept=(404,)) or []):
            return False
    return True


def carry_out(admin: PulsarAdmin, steps: Iterable[Step], done: Callable[[Step], None] = lambda _step: None) -> None:
    """Do the steps in their order; ``done`` is called after each. A tenant that is there is left as it is."""
    for step in steps:
        if step.command[0] == "tenants":
            tenant = step.command[-1]
            if admin.has_tenant(tenant):
                continue
            step = tenant_step(tenant, admin.clusters())
        admin.do(step)
        done(step)


def try_writing(settings: PulsarSettings, topics: Iterable[str]) -> None:
    """Open a producer on each topic and close it again: a missing right is seen before the first message.

    A topic that is not there is left alone. Raises DeniedError with the grant that is missing.
    """
    with PulsarClient(settings) as client:
        for topic in topics:
            partitions = client.partitioned(topic)
            if partitions:
                with our_errors(f"closing the producer on {partitions[0]}"):
                    client.producer(partitions[0], batching=False).close()


def try_reading(settings: PulsarSettings, topics: Iterable[str]) -> None:
    """Open a reader at the end of each topic and close it again: nothing is taken from anybody.

    Raises DeniedError with the grant that is missing.
    """
    with PulsarClient(settings) as client:
        for topic in topics:
            partitions = client.partitioned(topic)
            if partitions:
                with our_errors(f"closing the reader of {partitions[0]}"):
                    client.reader(partitions[0], MessageId.latest).close()


# --- looking --------------------------------------------------------------------------------------------------


def verify(admin: PulsarAdmin, needs: Needs) -> list[str]:
    """Return what this role may not look at. Raises TerminalError listing the commands for all that is missing."""
    found = look(admin, needs)
    if found.missing:
        count = "1 thing is" if len(found.missing) == 1 else f"{len(found.missing)} things are"
        lines = "".join(f"\n  {step.shell}  # {step.why}" for step in found.missing)
        raise TerminalError(
            f"{count} missing in Pulsar for {needs.tier}; an operator has to run, and then start it again:{lines}"
        )
    return found.unchecked


def say_unchecked(unchecked: Sequence[str]) -> None:
    """Say once what was taken for granted."""
    if unchecked:
        log.info("not checked, this role may not look at it", what=list(unchecked))


def look(admin: PulsarAdmin, needs: Needs) -> Found:
    """Compare what is there with what a tier needs, changing nothing.

    Raises TransientError, or DeniedError with the least rights of the tier when not even a look-up is allowed.
    """
    found = Found()
    gone = {n for n in needs.namespaces if not _look_at_namespace(admin, n, found)}
    for need in needs.topics:
        if namespace_of(need.topic) in gone:
            found.missing += topic_steps(need)
            continue
        try:
            _look_at_topic(admin, need, found)
        except DeniedError as e:
            if not _rights(e):
                raise
            token = admin.settings.token
            role = None if token is None else role_of(token.get_secret_value())
            grants = grant_steps(admin.settings, {needs.tier: role or "ROLE"})
            lines = "; ".join(step.shell for step in grants)
            raise DeniedError(e.what, remedy=f"{needs.tier} needs at least: {lines}") from e
    return found


def _look_at_namespace(admin: PulsarAdmin, namespace: str, found: Found) -> bool:
    """Return whether the namespace is there, as far as can be told."""
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


def _look_at_topic(admin: PulsarAdmin, need: TopicNeed, found: Found) -> None:
    metadata = admin.request("GET", f"/{rest_path(need.topic)}/partitions", accept=(404,))
    if metadata is None:
        found.missing += topic_steps(need)
        return
    partitions = partition_names(need.topic, int(metadata["partitions"]))
    for partition in partitions if need.subscriptions else ():
        try:
            there: Any = admin.request("GET", f"/{rest_path(partition)}/subscriptions", accept=(404,)) or []
        except DeniedError as e:
            if not _rights(e):
                raise
            found.unchecked.append(f"subscriptions of {partition} (needs consume)")
            continue
        found.missing += [subscription_step(partition, s) for s in need.subscriptions if s not in there]
    if need.compacted:
        _look_at_compaction(admin, need, found)


def _look_at_compaction(admin: PulsarAdmin, need: TopicNeed, found: Found) -> None:
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
    """Whether the role is known but lacks the right, so that other questions may be answered."""
    return "does not allow" in error.what


# --- the hold on what is renewed ------------------------------------------------------------------------------


def move_hold(admin: PulsarAdmin, partition: str, hold: str) -> None:
    """Move the hold of a compacted partition to the horizon of the last compaction, or nothing would ever be trimmed.

    For records that are renewed anyhow: what the compacted view alone has may be lost (``bridge/push/holds.py``). While
    a compaction runs nothing comes of it: Pulsar shows the oldest message that stays as the horizon then.
    """
    cursors = admin.internal_stats(partition)["cursors"]
    if COMPACTION not in cursors or hold not in cursors:
        return
    horizon = Position.parse(cursors[COMPACTION]["markDeletePosition"])
    if horizon > Position.parse(cursors[hold]["markDeletePosition"]) and horizon.entry >= 0:
        admin.request(
            "POST",
            f"{subscription_path(partition, hold)}/resetcursor",
            body={"ledgerId": horizon.ledger, "entryId": horizon.entry, "partitionIndex": -1},
        )
