"""The resources that Pulsebridge needs in Pulsar, as steps: each a pulsar-admin command and a request.

One list serves all modes: ``pulsar.provision: create`` sends the requests, ``verify`` compares them with the existing
resources, ``pulsebridge provision --dry-run`` prints the commands. The order matters: retention precedes the topic
(H11), and a topic's retention subscription precedes its first message (H24).
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote

from bridge.contract import (
    ALERTS_TOPIC,
    COMMANDS_TOPIC,
    CURSORS_TOPIC,
    DEAD_LETTERS_TOPIC,
    GROUP_COMMANDS_TOPIC,
    GROUP_MEMBERS_TOPIC,
    GROUP_ROSTER_TOPIC,
    GROUPS_SUBSCRIPTION,
    INSTANCES_TOPIC,
    PARKED_TOPIC,
    PRESENCE_TOPIC,
    PUSH_SUBSCRIPTION,
    RECEIPTS_TOPIC,
    RESUME_TOPIC,
    partition_name,
)
from bridge.settings.pulsar import PulsarSettings

__all__ = [
    "COMPACTION",
    "COMPACTION_THRESHOLD_BYTES",
    "CURSOR_RETENTION",
    "INSTANCES_RETENTION",
    "MEMBERS_RETENTION",
    "PARKED_RETENTION",
    "PRESENCE_RETENTION",
    "QUOTA_POLICY",
    "RIGHTS",
    "ROSTER_RETENTION",
    "Needs",
    "Step",
    "TopicNeed",
    "grant_steps",
    "group_needs",
    "ingest_needs",
    "namespace_steps",
    "policies_lack",
    "push_needs",
    "rest_path",
    "subscription_path",
    "tenant_step",
    "topic_need",
    "topic_steps",
]

COMPACTION: Final = "__compaction"
"""Pulsar's own subscription; its position is the horizon of the compacted view."""

COMPACTION_THRESHOLD_BYTES: Final = 16 * 1024 * 1024
"""Backlog of a cursors partition at which Pulsar compacts it; 0 would mean never (H24). A compaction rewrites the whole
compacted view, so a small threshold costs more. A new owner reads at most this much in addition to the view."""

CURSOR_RETENTION: Final = "pulsebridge-cursors"
"""Durable subscription at earliest on each cursors partition. Only push moves it, up to the oldest record that is the
last of its key. So neither the topic nor such a record is deleted while no push worker runs (H24)."""

INSTANCES_RETENTION: Final = "pulsebridge-instances"
PRESENCE_RETENTION: Final = "pulsebridge-presence"
MEMBERS_RETENTION: Final = "pulsebridge-group-members"
ROSTER_RETENTION: Final = "pulsebridge-group-roster"
"""The same on the partitions of the other compacted topics."""

PARKED_RETENTION: Final = "pulsebridge-parked"
"""Durable subscription on each commands partition, made before push's own. It retains the commands of offline devices,
which push has acknowledged. The same on each partition of relocated commands. Only the partition's owner moves it (H25)."""

QUOTA_POLICY: Final = "producer_request_hold"
"""The only quota policy that neither drops messages nor fails producers (H1 c, H13)."""

_UNUSED_TOPICS: Final = {
    "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
    "maxInactiveDurationSeconds": 60,
    "deleteWhileInactive": False,
}
_STORAGE: Final = "destination_storage"
DONE: Final = (409,)  # it exists already


@dataclass(frozen=True, slots=True)
class Step:
    """One step: its reason, its arguments of pulsar-admin, and its request below ``/admin/v2``."""

    why: str
    command: tuple[str, ...]
    method: str
    path: str
    body: Any = None
    accept: tuple[int, ...] = ()
    lacking: Callable[[Mapping[str, Any]], bool] | None = None
    """For a policy of a namespace: whether the namespace's policies lack it."""

    @property
    def shell(self) -> str:
        """The command line for an operator."""
        return shlex.join(("pulsar-admin", *self.command))


@dataclass(frozen=True, slots=True)
class TopicNeed:
    """A partitioned topic, the durable subscriptions on each partition, and whether it is compacted."""

    topic: str
    partitions: int
    subscriptions: tuple[str, ...] = ()
    compacted: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class Needs:
    """The resources that one tier needs: namespaces (tenant/namespace) with their policies, and topics."""

    tier: str
    namespaces: tuple[str, ...]
    topics: tuple[TopicNeed, ...]


_AS_COMMANDS: Final = 0
"""As many partitions as the commands, by the same hash of the device. The other topics have one order."""
_SYSTEM_TOPICS: Final = {
    need.topic: need
    for need in (
        TopicNeed(RECEIPTS_TOPIC, _AS_COMMANDS, why="the result of each command"),
        TopicNeed(DEAD_LETTERS_TOPIC, _AS_COMMANDS, why="undeliverable messages of ingest and push"),
        TopicNeed(ALERTS_TOPIC, _AS_COMMANDS, why="alerts of the rules"),
        TopicNeed(CURSORS_TOPIC, _AS_COMMANDS, (CURSOR_RETENTION,), True, "the position of each device"),
        TopicNeed(PRESENCE_TOPIC, _AS_COMMANDS, (PRESENCE_RETENTION,), True, "when each device was last seen"),
        TopicNeed(INSTANCES_TOPIC, 1, (INSTANCES_RETENTION,), True, "which ingest and push processes run"),
        TopicNeed(GROUP_MEMBERS_TOPIC, 1, (MEMBERS_RETENTION,), True, "the members of each group"),
        TopicNeed(
            GROUP_ROSTER_TOPIC, 1, (ROSTER_RETENTION,), True, "how far the commands to groups are passed to the members"
        ),
        TopicNeed(GROUP_COMMANDS_TOPIC, 1, (GROUPS_SUBSCRIPTION,), why="commands to groups of devices"),
        TopicNeed(RESUME_TOPIC, _AS_COMMANDS, (PUSH_SUBSCRIPTION,), why="after which command devices resume"),
        TopicNeed(PARKED_TOPIC, _AS_COMMANDS, (PARKED_RETENTION,), why="commands of devices that are offline for long"),
        TopicNeed(COMMANDS_TOPIC, _AS_COMMANDS, (PARKED_RETENTION, PUSH_SUBSCRIPTION), why="commands to the devices"),
    )
}


def topic_need(pulsar: PulsarSettings, local: str, *subscriptions: str) -> TopicNeed:
    """Return the need of a topic in the system namespace, with further ``subscriptions``."""
    need = _SYSTEM_TOPICS[local]
    return replace(
        need,
        topic=pulsar.system_topic(local),
        partitions=need.partitions or pulsar.command_partitions,
        subscriptions=need.subscriptions + subscriptions,
    )


def ingest_needs(
    pulsar: PulsarSettings, readings: Iterable[str] = (), *, presence: bool = True, resume: bool = True
) -> Needs:
    """Return the needs of ingest. ``readings``: the full names of readings topics that are known beforehand;
    ``presence``: whether ingest records when each device was last seen; ``resume``: whether devices may ask to resume.
    """
    system = [DEAD_LETTERS_TOPIC, INSTANCES_TOPIC, *([PRESENCE_TOPIC] * presence), *([RESUME_TOPIC] * resume)]
    own = (TopicNeed(topic, pulsar.partitions, why="readings of a rule") for topic in readings)
    return Needs("ingest", pulsar.all_namespaces, (*(topic_need(pulsar, local) for local in system), *own))


def push_needs(pulsar: PulsarSettings, commands_topic: str | None = None) -> Needs:
    """Return the needs of push and the sink; cursors precede commands, whose subscription comes last."""
    *others, commands = (topic_need(pulsar, local) for local in _SYSTEM_TOPICS)
    commands = replace(commands, topic=commands_topic or commands.topic)
    return Needs("push", (f"{pulsar.tenant}/{pulsar.system_namespace}",), (*others, commands))


def group_needs(pulsar: PulsarSettings) -> list[TopicNeed]:
    """Return the topics of commands to groups; one partition each, because they have one order."""
    return [topic_need(pulsar, local) for local in (GROUP_MEMBERS_TOPIC, GROUP_ROSTER_TOPIC, GROUP_COMMANDS_TOPIC)]


# --- steps ----------------------------------------------------------------------------------------------------


def tenant_step(tenant: str, clusters: Sequence[str] = ()) -> Step:
    """Return the step that makes a tenant, which needs a super-user. No ``clusters`` means all."""
    return Step(
        "the tenant",
        ("tenants", "create", tenant),
        "PUT",
        f"/tenants/{tenant}",
        {"adminRoles": [], "allowedClusters": list(clusters)},
        DONE,
    )


def namespace_steps(namespace: str, pulsar: PulsarSettings) -> list[Step]:
    """Return the steps for a namespace that retains its messages: the namespace, then its policies."""
    minutes = -1 if pulsar.retention is None else math.ceil(pulsar.retention / 60)
    size = -1 if pulsar.retention_size is None else math.ceil(pulsar.retention_size / 1024 / 1024)
    time, megabytes = f"{minutes}m" if minutes >= 0 else "-1", f"{size}M" if size >= 0 else "-1"
    steps = [
        Step("the namespace", ("namespaces", "create", namespace), "PUT", f"/namespaces/{namespace}", None, DONE),
        _policy(
            "retention, or messages without a subscription are deleted",
            ("set-retention", namespace, "--time", time, "--size", megabytes),
            "retention",
            {"retentionTimeInMinutes": minutes, "retentionSizeInMB": size},
            _no_retention,
        ),
        _policy(
            "no message TTL, which consumes messages that subscriptions retain",
            ("set-message-ttl", namespace, "--messageTTL", "0"),
            "messageTTL",
            0,
            lambda found: bool(found.get("message_ttl_in_seconds")),
        ),
        _policy(
            "no expiry of subscriptions, which would release the messages that they retain",
            ("set-subscription-expiration-time", namespace, "--time", "0"),
            "subscriptionExpirationTime",
            0,
            lambda found: bool(found.get("subscription_expiration_time_minutes")),
        ),
        _policy(
            "unused topics are not deleted",
            (
                *("set-inactive-topic-policies", namespace, "--disable-delete-while-inactive"),
                *("--max-inactive-duration", "60s", "--delete-mode", "delete_when_no_subscriptions"),
            ),
            "inactiveTopicPolicies",
            _UNUSED_TOPICS,
            lambda found: (found.get("inactive_topic_policies") or {}).get("deleteWhileInactive") is not False,
        ),
        _policy(
            "at the backlog quota producers wait; nothing is refused or evicted",
            ("set-backlog-quota", namespace, "--limit", "-1", "--policy", QUOTA_POLICY),
            f"backlogQuota?backlogQuotaType={_STORAGE}",
            {"limitSize": -1, "limitTime": -1, "policy": QUOTA_POLICY},
            _drops_at_quota,
        ),
    ]
    if pulsar.auto_topics == "refuse":
        # Pulsar's own topics (__change_events and such) and the partitions of an existing topic are exempt.
        steps.append(
            _policy(
                "no automatic topics, or messages that are written after a deletion belong to no topic",
                ("set-auto-topic-creation", namespace, "--disable"),
                "autoTopicCreation",
                {"allowAutoTopicCreation": False},
                lambda found: (found.get("autoTopicCreationOverride") or {}).get("allowAutoTopicCreation") is not False,
            )
        )
    return steps


def _policy(
    why: str, command: tuple[str, ...], path: str, body: Any, lacking: Callable[[Mapping[str, Any]], bool]
) -> Step:
    """Return the step that sets a policy of the namespace ``command[1]``."""
    return Step(why, ("namespaces", *command), "POST", f"/namespaces/{command[1]}/{path}", body, lacking=lacking)


def topic_steps(need: TopicNeed) -> list[Step]:
    """Return the steps for a topic, its subscriptions and its compaction."""
    steps = [
        Step(
            need.why,
            ("topics", "create-partitioned-topic", need.topic, "--partitions", str(need.partitions)),
            "PUT",
            f"/{rest_path(need.topic)}/partitions",
            need.partitions,
            DONE,
        )
    ]
    if need.compacted:
        steps.append(threshold_step(need.topic))
    for number in range(need.partitions):
        steps += [subscription_step(partition_name(need.topic, number), s) for s in need.subscriptions]
    return steps


def threshold_step(topic: str) -> Step:
    """Return the step that sets the compaction threshold of one topic.

    It is not a policy of the namespace, which would compact the commands, and these are not state.
    """
    return Step(
        "a compaction threshold; without one it is never compacted",
        ("topicPolicies", "set-compaction-threshold", topic, "--threshold", str(COMPACTION_THRESHOLD_BYTES)),
        "POST",
        f"/{rest_path(topic)}/compactionThreshold",
        COMPACTION_THRESHOLD_BYTES,
    )


def subscription_step(partition: str, name: str) -> Step:
    """Return the step that makes a durable subscription at the earliest message of one partition."""
    return Step(
        "a durable subscription from the first message on",
        ("topics", "create-subscription", partition, "--subscription", name, "--messageId", "earliest"),
        "PUT",
        subscription_path(partition, name),
        "earliest",
        DONE,
    )


def compact_step(partition: str) -> Step:
    """Return the step that compacts one partition now, which also proves that Pulsar can (H24)."""
    return Step(
        "a first compaction",
        ("topics", "compact", partition),
        "PUT",
        f"/{rest_path(partition)}/compaction",
        None,
        DONE,
    )


def grant_steps(pulsar: PulsarSettings, roles: Mapping[str, str]) -> list[Step]:
    """Return the least rights of each tier. ``roles``: ingest, source, sink or push → the name of its role.

    A role that two tiers share gets the rights of both, because a grant replaces the earlier one.
    """
    system = f"{pulsar.tenant}/{pulsar.system_namespace}"
    wanted: dict[tuple[str, str], set[str]] = {}
    for tier, role in roles.items():
        for namespace, action in RIGHTS[tier]:
            for name in pulsar.readings_namespaces if namespace == "readings" else (system,):
                wanted.setdefault((name, role), set()).add(action)
    return [
        Step(
            f"{' and '.join(sorted(actions))} for {', '.join(t for t, r in roles.items() if r == role)}",
            ("namespaces", "grant-permission", name, "--role", role, "--actions", ",".join(sorted(actions))),
            "POST",
            f"/namespaces/{name}/permissions/{quote(role, safe='')}",
            sorted(actions),
        )
        for (name, role), actions in sorted(wanted.items())
    ]


RIGHTS: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "ingest": (("readings", "produce"), ("system", "produce"), ("system", "consume")),
    "source": (("readings", "consume"),),
    "sink": (("system", "produce"), ("system", "consume")),
    "push": (("system", "produce"), ("system", "consume")),
}
"""The rights that each tier needs if it does not provision; a test compares the table of the security page with it."""


# --- verifying ------------------------------------------------------------------------------------------------


def policies_lack(namespace: str, policies: Mapping[str, Any], pulsar: PulsarSettings) -> list[Step]:
    """Return the steps for the policies that a namespace lacks, given its current ones."""
    lacking = [s for s in namespace_steps(namespace, pulsar) if s.lacking is not None and s.lacking(policies)]
    return lacking + [
        Step(
            f"no quota on {kind} with the policy {quota.get('policy')}, under which messages are refused or evicted",
            ("namespaces", "remove-backlog-quota", namespace, "--type", kind),
            "DELETE",
            f"/namespaces/{namespace}/backlogQuota?backlogQuotaType={kind}",
        )
        for kind, quota in (policies.get("backlog_quota_map") or {}).items()
        if kind != _STORAGE and quota.get("policy") != QUOTA_POLICY
    ]


def _no_retention(policies: Mapping[str, Any]) -> bool:
    found = policies.get("retention_policies") or {}
    return not found.get("retentionTimeInMinutes") or not found.get("retentionSizeInMB")


def _drops_at_quota(policies: Mapping[str, Any]) -> bool:
    quota = (policies.get("backlog_quota_map") or {}).get(_STORAGE)
    return quota is not None and quota.get("policy") != QUOTA_POLICY  # no quota: producers wait


def rest_path(topic: str) -> str:
    """Return ``persistent/tenant/namespace/encoded-name`` for a full topic name."""
    domain, _, rest = topic.partition("://")
    tenant, namespace, local = rest.split("/", 2)
    return f"{domain}/{tenant}/{namespace}/{quote(local, safe='')}"


def subscription_path(topic: str, name: str) -> str:
    """Return the admin's REST path of one subscription of a topic or a partition."""
    return f"/{rest_path(topic)}/subscription/{quote(name, safe='')}"
