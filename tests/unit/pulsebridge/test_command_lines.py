"""Commands from options and from lines: what is made, which line is refused and why, and when a line counts as late."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bridge.contract.commands import MAX_COMMAND_BYTES, Command
from bridge.contract.groups import GroupCommand
from bridge.errors import ConfigError
from pulsebridge.command_lines import CommandSource

GOOD: Mapping[str, Any] = {"device": "press-3", "mqtt_topic": "devices/press-3/commands", "payload": "{}"}


def source(**defaults: Any) -> CommandSource:
    return CommandSource(defaults, "run", 64)


def written(folder: Path, *lines: Mapping[str, Any] | bytes) -> Path:
    path = folder / "commands.jsonl"
    path.write_bytes(b"".join((one if isinstance(one, bytes) else json.dumps(one).encode()) + b"\n" for one in lines))
    return path


def made(found: Iterator[Command | GroupCommand | None]) -> list[Command | GroupCommand]:
    return [one for one in found if one is not None]


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    try:
        yield ends
    finally:
        for one in ends:
            os.close(one)


def test_the_command_of_the_options() -> None:
    before_ms = time.time_ns() // 1_000_000
    command = source(**GOOD, qos=2, retain=True, expires_in="30s").single()
    assert isinstance(command, Command)
    assert (command.command_id, command.device, command.payload) == ("run", "press-3", b"{}")
    assert (command.qos, command.retain) == (2, True)
    assert before_ms + 30_000 <= command.expires_at_ms <= time.time_ns() // 1_000_000 + 30_000
    assert before_ms * 1000 <= command.emitted_at_us
    group = source(group="presses", payload=b"\xff").single()
    assert isinstance(group, GroupCommand)
    assert (group.group, group.mqtt_topic, group.payload, group.expires_at_ms) == ("presses", "", b"\xff", 0)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"mqtt_topic": "a/#"}, "--topic: is 'a/#', and a topic to publish on has no + or #"),
        ({"mqtt_topic": ""}, "--topic: is empty"),
        ({"qos": 3}, "--qos: is 3, wanted 0, 1 or 2"),
        ({"device": "d" * 65}, "--device: has 65 bytes, max_name_bytes is 64"),
        ({"device": ""}, "--device: is '' and group is '': give one of them"),
        ({"group": "g"}, "--device: is 'press-3' and group is 'g': give one of them"),
        ({"command_id": ""}, "--id: is empty"),
        ({"expires_in": "30"}, "--expires-in: is '30': has no unit: write a duration like 30s"),
        ({"expires_in": "0s"}, "--expires-in: is '0s'; leave it out for a command that does not expire"),
        ({"expires_in": "9" * 400 + "d"}, "--expires-in: is '99"),
        ({"payload": "\udcff"}, "--payload: is not valid: 'utf-8' codec"),
        ({"payload": b"x" * MAX_COMMAND_BYTES}, "--payload: makes a message of"),
    ],
)
def test_an_invalid_option_is_named_with_its_value(changes: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError) as found:
        source(**{**GOOD, **changes}).single()
    assert str(found.value).startswith(error)


def test_a_group_command_needs_the_device_in_its_topic() -> None:
    with pytest.raises(
        ConfigError, match=r"^--topic: is 'all', and the topic of a group command must contain {device}"
    ):
        source(group="g", mqtt_topic="all", payload="").single()


def test_a_line_has_precedence_over_the_options_and_its_number_makes_its_id(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        b"\xef\xbb\xbf" + json.dumps({"device": "a", "qos": None}).encode(),
        b"  ",
        {"device": "bü", "command_id": "own", "payload_base64": base64.b64encode(b"\0\xff").decode(), "qos": 0},
        {"group": "g", "payload": "", "cause": "test"},
        {"device": "c", "payload": "", "link": "far"},
    )
    found = made(source(mqtt_topic="devices/{device}/commands", payload=b"usual", qos=2).file(path))
    a, b, group, c = found
    assert isinstance(a, Command)
    assert isinstance(b, Command)
    assert (a.command_id, a.mqtt_topic, a.payload, a.qos) == ("run-1", "devices/a/commands", b"usual", 2)
    assert (b.command_id, b.mqtt_topic, b.payload, b.qos) == ("own", "devices/bü/commands", b"\0\xff", 0)
    assert (group.command_id, group.mqtt_topic, group.payload) == ("run-4", "devices/{device}/commands", b"")
    assert group.cause == "test"
    assert isinstance(c, Command)
    assert c.link == "far"
    assert [one.command_id for one in made(source(payload=b"", mqtt_topic="t/{device}").file(path))] == [
        "run-1", "own", "run-4", "run-5",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"{", "JSON: is not valid: Expecting property name"),
        (b"\xff{}", "JSON: is not valid: 'utf-8' codec"),
        (b"[" * 200_000, "JSON: is not valid: "),
        (b"[]", "JSON: is not an object: write one object in each line"),
        ({**GOOD, "topic": "t"}, "topic: is not a field of a command; known are command_id, device,"),
        ({**GOOD, "xyz": 1}, "xyz: is not a field of a command; known are command_id, device,"),
        ({**GOOD, "payload": {"a": 1}}, 'payload: is {"a": 1}, wanted text; write JSON as a string (jq: tojson)'),
        ({**GOOD, "qos": True}, "qos: is true, wanted a whole number"),
        ({**GOOD, "qos": 1.0}, "qos: is 1.0, wanted a whole number"),
        ({**GOOD, "retain": 1}, "retain: is 1, wanted true or false"),
        ({**GOOD, "broadcast": True}, "broadcast: is true, and only a command to a group is broadcast"),
        ({**GOOD, "cause": "\ud800"}, "JSON: is not valid: 'utf-8' codec"),
        ({**GOOD, "payload_base64": "aa=="}, "payload: is given twice"),
        ({"device": "d", "mqtt_topic": "t", "payload_base64": "a"}, "payload_base64: is not valid: "),
        ({"device": "d", "mqtt_topic": "t"}, "payload: is missing"),
        ({"payload": ""}, "device: is '' and group is ''"),
        ({"group": "g", "payload": "", "link": "far"}, "link: is 'far'; only a command for one device may name a link"),
    ],
)
def test_an_invalid_line_is_named_before_the_first_command(
    tmp_path: Path, line: Mapping[str, Any] | bytes, error: str
) -> None:
    path = written(tmp_path, GOOD, b"", GOOD, line)
    with pytest.raises(ConfigError) as found:
        source().file(path)  # not a command is taken from it
    assert str(found.value).startswith(f"line 4 of {path}: {error}")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--lines .*absent: No such file"):
        made(source().file(tmp_path / "absent"))
    with pytest.raises(ConfigError, match=r"--lines .*: Is a directory"):
        made(source().file(tmp_path))


def test_lines_of_a_pipe_are_made_as_they_arrive_and_none_says_that_the_next_is_late() -> None:
    with pipe() as (read, write):
        found = source().lines(read, "stdin")
        assert next(found) is None
        line = json.dumps(GOOD).encode()
        os.write(write, line + b"\n" + line[:20])
        first = next(found)
        assert first is not None
        assert first.command_id == "run-1"
        assert next(found) is None, "half a line is no line"
        os.write(write, line[20:] + b"\n[]\n")
        second = next(found)
        assert second is not None
        assert second.command_id == "run-2"
        with pytest.raises(ConfigError, match=r"^line 3 of stdin: JSON: "):
            next(found)


def test_the_last_line_needs_no_line_feed(tmp_path: Path) -> None:
    path = tmp_path / "one"
    path.write_text(json.dumps(GOOD))
    assert len(made(source().file(path))) == 1
