"""Prints docs/reference/sink-options.md: the options and the columns of all sinks.

``python -m sinks.option_docs > docs/reference/sink-options.md``; a test compares the file with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from sinks.columns import COMMAND_COLUMNS, GROUP_MEMBER_COLUMNS, MQTT_SINK_COLUMNS, TOPIC_SINK_COLUMNS
from sinks.option_names import COMMANDS, GROUPS, MQTT, NO_EFFECT, OPTIONS, TOPICS
from sinks.rows import ALERT, REQUIRED_COLUMNS

__all__ = ["render"]

_HEAD: Final = """# Options and columns of the sinks

Printed by `python -m sinks.option_docs`. Option names are case-insensitive. A sink rejects an unknown option or column and suggests the nearest known name. It reports all problems at once, before it writes anything.
All sinks accept `.mode("append")`, streams the output modes `append` and `update`. Other modes are rejected, because sent rows cannot be replaced. A task succeeds when everything that it wrote is confirmed. A retried task repeats its rows.
A row that cannot be written goes to the dead letters with its number within the task, the field and the reason. The other rows are written. The driver's log has the number of such rows. With `badRows=fail` the row fails the task instead.
"""
_ABOUT: Final[Mapping[str, str]] = {
    TOPICS: """Rows to Pulsar topics. Rows that `format("pulsebridge")` reads can be written unchanged. The Murmur3 hash of the key selects the partition, as Pulsar's own clients can (`Murmur3_32Hash`). Rows without a key go to the partitions in turn.
The option `topic` overrides the column `__topic`. `__eventTime` is stored in ms. If `value` and `payload` are both present, they must be equal. The source's other columns may be present and are not written: they describe a row's position, or repeat `__messageProperties`.
No row may name a topic of the system namespace. A query that writes to a topic that it reads never ends: set `topic`.""",
    COMMANDS: """Commands to devices, which `pulsebridge push` delivers. `command_id` is the identity: a device receives a command once, even if it is written several times. Push remembers a device's last 256 ids, and up to 4,096 of a week (`push.limits.remembered_ids`). To keep a device's order, repartition by `device` and sort within partitions by `emitted_at`.
A row is for one device (`device` and `mqtt_topic`) or for all devices of a group (`group`). A group command's payload is stored once. Push creates a command for each member, with an id made of `command_id` and device. Group commands keep their order among themselves. Relative to a device's own commands, the order is that of arrival in the device's queue. A command that is written after a group command may arrive before it, unless its writer waits for the receipt `expanded`. In a group command, `mqtt_topic` is a template with `{device}`, or null for `push.groups.topic`. Without `expires_at`, or if `expires_at` is later, `push.groups.expiry` applies. Devices that join before the expiry receive the command as well. Push rejects an unknown group: dead letter, receipt `rejected`. Once the group has members, `pulsebridge resend` sends the command to them. The receipt `expanded` contains the number of members. The members' receipts name `group` and `group_command_id`. With `broadcast` true push publishes the command once for all members, and copies it to those that do not answer.""",
    GROUPS: """Memberships of groups, for commands with a `group`. Devices that `push.groups.declared` names are members as well. A row adds a device to a group, or with `member` false removes it. Rows for the same device of a group apply in their order: if there may be several, repartition by `group` and `device` and sort. A device receives a command if its membership was written before the command, or if it joins before the command expires. A device that leaves keeps the commands that it has received or is about to receive.""",
    MQTT: """Rows straight to an MQTT broker, without a log between: QoS 1 by default. A task succeeds only if each row is confirmed. Rows of one QoS keep the task's order as far as the broker keeps it. A retried task repeats its publishes, and nothing marks the duplicates: use `pulsebridge_commands` for commands that must arrive once.
With MQTT 5 a refusal of one row (topic not allowed, topic or format not valid) makes it a bad row. Earlier versions cannot report such a refusal. A row that exceeds the limits that the broker announces (Maximum Packet Size, Maximum QoS, Retain Available) is a bad row. So is a row at which a broker without announced limits closes the connection. The sink finds it by sending the unconfirmed publishes one by one. Each such row costs three disconnects, and more than 100 of them fail the task. With `qos` 0 such a row is lost. A dead letter is JSON: `reason`, `row`, `field`, `mqtt_topic`, `payload_base64`. If it would exceed the broker's limit, the payload is cut to its head, and `cut`, `payload_bytes` and `payload_sha256` are added.
With MQTT 5 publishes carry the user property `pulsebridge-origin`, and ingest leaves them out unless `allowLoopback` is true. With earlier versions, exclude these topics from ingest's filters.""",
}
_COLUMNS: Final[Mapping[str, tuple[Mapping[str, Sequence[str]], Sequence[str]]]] = {
    TOPICS: (TOPIC_SINK_COLUMNS, ("value",)),
    COMMANDS: ({name: (kind,) for name, kind in (*COMMAND_COLUMNS, (ALERT, "binary"))}, REQUIRED_COLUMNS),
    GROUPS: (GROUP_MEMBER_COLUMNS, ("group", "device")),
    MQTT: (MQTT_SINK_COLUMNS, ("mqtt_topic", "payload")),
}
_NOTES: Final[Mapping[str, str]] = {
    "value": ", or `payload`; null is a tombstone",
    "__topic": "required without the option `topic`",
    "__eventTime": "a number is ms since the epoch",
    "mqtt_topic": " without the option `topic`",
    "member": "true if it is null or absent",
}

_COMMAND_NOTES: Final[Mapping[str, str]] = {
    "device": "required without `group`",
    "mqtt_topic": "required with `device`; with `group` a template",
    "cause": "reason for the command, at most 4,096 bytes in UTF-8",
    "group": "required without `device`",
    "link": "name of a link of `ingest.links`: where the device gets the command if push has never seen it; not with `group`",
    "broadcast": "with `group`: publish it once for all members; needs `push.confirm: device`",
    "alert": "sent to the topic `alerts` of the system namespace; a row with it needs neither device nor group, and without them contains no command",
}


def render() -> str:
    """Return the whole page."""
    return "".join(_lines())


def _lines() -> Iterator[str]:
    yield _HEAD
    for name, options in OPTIONS.items():
        yield f'\n## `format("{name}")`\n\n{_ABOUT[name]}\n\n'
        columns, required = _COLUMNS[name]
        yield from _table(
            ("column", "type", ""),
            (
                (f"`{one}`", " or ".join(kinds), ("required" if one in required else "") + _note(name, one))
                for one, kinds in columns.items()
            ),
        )
        yield "\n"
        yield from _table(("option", "meaning"), ((f"`{one}`", meaning) for one, meaning in options.items()))
        if name == TOPICS:
            yield "\nAccepted for StreamNative's connector, without effect: "
            yield ", ".join(f"`{one}`" for one in NO_EFFECT) + ".\n"


def _note(name: str, column: str) -> str:
    return (_COMMAND_NOTES if name == COMMANDS else _NOTES).get(column, "")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |\n|" + "---|" * len(head) + "\n"
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n"


if __name__ == "__main__":
    print(render(), end="")  # noqa: T201
