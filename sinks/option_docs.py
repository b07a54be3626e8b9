"""Prints sinks/OPTIONS.md: the options and the columns of all sinks.

``python -m sinks.option_docs > sinks/OPTIONS.md``; a test holds the file true.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from bridge.contract import COMMAND_COLUMNS, MQTT_SINK_COLUMNS, TOPIC_SINK_COLUMNS
from bridge.groups import GROUP_MEMBER_COLUMNS
from sinks.option_names import COMMANDS, GROUPS, MQTT, NO_EFFECT, OPTIONS, TOPICS
from sinks.rows import ALERT, REQUIRED_COLUMNS

__all__ = ["render"]

_HEAD: Final = """# Options and columns of the sinks

Printed by `python -m sinks.option_docs`. Names of options compare without case. An unknown option or column is refused with the nearest known name, and all problems are told at once, before anything is written.
All take `.mode("append")`, streams the output modes `append` and `update`; what would replace what was sent is refused. A task has succeeded when everything it wrote is confirmed; one that is tried again writes its rows again.
A row that cannot be written goes to the dead letters with its number within the task, the field and the reason, and the others go on; the driver's log says how many. With `badRows=fail` it fails the task instead.
"""
_ABOUT: Final[Mapping[str, str]] = {
    TOPICS: """Rows into Pulsar topics; what `format("pulsebridge")` reads can be written as it is. With a key, a message goes to the partition that Murmur3 gives it, as Pulsar's own clients can (`Murmur3_32Hash`); without one the partitions take turns.
The option `topic` counts before the column `__topic`. `__eventTime` is kept in ms. When `value` and `payload` are both there they must be equal. The source's other columns may be there and are not written: they say where a row was, or repeat what stands in `__messageProperties`.
No row may name a topic of the system namespace. A query that writes to a topic it reads never ends: give `topic`.""",
    COMMANDS: """Commands to devices, which `pulsebridge push` delivers. `command_id` is the identity: however often a command is written, its device gets it once (push remembers a device's last 256 ids, and up to 4,096 of a week: `push.remembered_ids`). To keep a device's order, repartition by `device` and sort within partitions by `emitted_at`.
A row is for one device (`device` and `mqtt_topic`) or for all devices of a group (`group`): its payload is stored once, and each member gets a command of its own under an id made of `command_id` and device. Group commands keep their order among themselves. With the device's own commands the order is that of arrival in its queue: one that is written after a group command may come before it, unless its writer waits for the receipt `expanded`. There `mqtt_topic` is a template with `{device}`, or null for `push.group_topic`; without `expires_at`, or beyond it, `push.group_expiry_s` counts. Until then devices that join get it too. An unknown group is refused by push: dead letter, receipt `rejected`; once it has members, `pulsebridge dead-letters replay` gives it to them. The receipt `expanded` has the number of members, and those of the members name `group` and `group_command_id`.""",
    GROUPS: """Who is in which group, for commands with a `group`; devices that `push.groups` names are in it besides. A row puts a device into a group, or with `member` false takes it out; rows for the same device of a group count in their order, so repartition by `group` and `device` and sort where both may come. Whoever was written before a command was gets it, whoever joins later until it expires. What a device has got, or is about to get, it keeps when it leaves.""",
    MQTT: """Rows straight to an MQTT broker, without a log between: QoS 1 by default, each confirmed before the task succeeds, in the order of the task as far as the broker keeps it (of one QoS alone). A task that is tried again publishes its rows again, and nothing tells the repeat: commands that must come once go through `pulsebridge_commands`.
With MQTT 5 a refusal that is about one row (topic not allowed, topic or format not valid) makes it a bad row; earlier versions cannot say so. A row that the broker says it does not take (its Maximum Packet Size, Maximum QoS, Retain Available) is a bad row, too, and so is one at which a broker that says nothing of its limits closes the connection, found by sending what was under way one by one: three ends of the connection for each such row, and the task fails at more than 100 of them; with `qos` 0 such a row is lost. A letter is JSON: `reason`, `row`, `field`, `mqtt_topic`, `payload_base64`; where it would be larger than the broker takes, the payload is cut to its head, and `cut`, `payload_bytes` and `payload_sha256` say so.
With MQTT 5 what is published carries the user property `pulsebridge-origin`, and ingest takes it for no reading unless `allowLoopback` is true; with earlier versions, keep these topics out of ingest's filters.""",
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
    "mqtt_topic": " where there is no option `topic`",
    "member": "true where it is null or absent",
}

_COMMAND_NOTES: Final[Mapping[str, str]] = {
    "device": "required without `group`",
    "mqtt_topic": "required with `device`; with `group` a template",
    "cause": "why it was written, at most 4,096 bytes in UTF-8",
    "group": "required without `device`",
    "alert": "goes to the topic `alerts` of the system namespace; a row with it needs neither device nor group, and is no command then",
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
        yield from _table(("option", "meaning"), ((f"`{one}`", told) for one, told in options.items()))
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
