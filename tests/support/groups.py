"""Groups of devices under test: memberships and group commands written by the bare client."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import pulsar

from bridge.contract import GROUP_COMMANDS_TOPIC, GROUP_MEMBERS_TOPIC, GROUPS_SUBSCRIPTION, partition_name
from bridge.contract.commands import Command
from bridge.contract.groups import MEMBER, GroupCommand, encode_group_command, entry_id, member_key
from bridge.pulsar.admin import PulsarAdmin
from bridge.settings import Settings
from tests.support.reading_back import quiet

__all__ = ["entries", "group_backlog", "group_command", "in_an_hour", "write_group_commands", "write_members"]


def in_an_hour() -> int:
    return int(time.time() + 3600) * 1000


def group_command(settings: Settings, number: int, group: str = "presses", **more: object) -> GroupCommand:
    """A command on the topics that ``tests.support.push.Devices`` listens to."""
    topic = f"{settings.push.client_id}/{{device}}/commands"
    return GroupCommand(f"{group}-{number}", group, topic, f"all {number}".encode(), **more)  # type: ignore[arg-type]


def entries(command: GroupCommand, devices: Iterable[str]) -> list[Command]:
    """What each device gets for it, as far as ``Devices`` looks at it."""
    return [Command(entry_id(command.command_id, name), name, "t", command.payload) for name in devices]


def write_members(settings: Settings, group: str, devices: Iterable[str], *, member: bool = True) -> None:
    with _Topic(settings, GROUP_MEMBERS_TOPIC) as producer:
        for device in devices:
            producer.send_async(MEMBER if member else b"", lambda *_: None, partition_key=member_key(group, device))
        producer.flush()


def write_group_commands(
    settings: Settings, commands: Iterable[GroupCommand], foreign: Mapping[str, str] | None = None
) -> None:
    """``foreign`` properties replace those that a sink writes."""
    with _Topic(settings, GROUP_COMMANDS_TOPIC) as producer:
        for one in commands:
            producer.send(
                one.payload,
                partition_key=one.group,
                properties=encode_group_command(one) | dict(foreign or {}),
            )


def group_backlog(settings: Settings) -> int:
    """How many group commands Pulsar keeps because they are open."""
    name = partition_name(settings.pulsar.system_topic(GROUP_COMMANDS_TOPIC), 0)
    with PulsarAdmin(settings.pulsar, timeout_s=30) as admin:
        return int(admin.stats(name)["subscriptions"][GROUPS_SUBSCRIPTION]["msgBacklog"])


class _Topic:
    def __init__(self, settings: Settings, local: str) -> None:
        logger = quiet()
        self._client = pulsar.Client(settings.pulsar.service_url, logger=logger)
        self._name = partition_name(settings.pulsar.system_topic(local), 0)

    def __enter__(self) -> pulsar.Producer:
        return self._client.create_producer(self._name, block_if_queue_full=True)

    def __exit__(self, *exc: object) -> None:
        self._client.close()
