"""``pulsebridge push --trace``: the way of a command, a line for each step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bridge.settings.pulsar import PulsarSettings
from pulsebridge.local.stack import LocalStack
from tests.support.push import (
    Devices,
    PushProcess,
    all_acknowledged,
    command,
    parking_settings,
    provision,
    says,
    write_commands,
)
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack

JSON_LINES = ("--set", "log.format=json")


def steps(process: PushProcess, command_id: str) -> list[dict[str, Any]]:
    """The lines of one command, less what happens whenever it may."""
    lines = [json.loads(line) for line in process.log.splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("command_id") == command_id]


def names(lines: list[dict[str, Any]]) -> list[str]:
    return [str(line["event"]) for line in lines]


def test_the_steps_of_a_live_and_of_a_parked_command_are_shown(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    settings = parking_settings(stack, namespaces)
    provision(settings)
    live, parked = command(settings, "live", 1), command(settings, "away", 1)
    says(settings, "away", b"offline", retain=True)
    with (
        PushProcess(settings, tmp_path, more=("--trace", "all", *JSON_LINES)) as process,
        Devices(settings, lambda _device, _count: True) as devices,
    ):
        process.owns()
        write_commands(settings, [live, parked])
        devices.await_all([live])
        all_acknowledged(settings)
        poll_for(lambda: "acked" in names(steps(process, "live-1")), 30, "the last step of the live one")
        poll_for(lambda: "acked" in names(steps(process, "away-1")), 30, "the parked one is acknowledged")
        assert names(steps(process, "away-1")) == ["notified", "matched", "parked", "acked"]
        says(settings, "away", b"online", retain=True)
        devices.await_all([parked])
        poll_for(lambda: "cursor" in names(steps(process, "away-1")), 30, "the last step of the parked one")
        way = steps(process, "live-1")
        assert names(way)[:4] == ["notified", "matched", "pulled", "pushed"]
        assert sorted(names(way)[4:6]) == ["answered", "puback"]
        assert names(way)[6:] == ["cursor", "receipt", "acked"]
        assert way[1]["queue"] == "live"
        assert way[2]["by"] == "subscription"
        assert way[7]["state"] == "answered"
        assert len({line["position"] for line in way}) == 1
        assert all(line["ms"] >= 0 and line["at"] and line["device"] == "live" for line in way)
        way = steps(process, "away-1")
        assert names(way)[4:7] == ["waking", "pulled", "pushed"]
        assert sorted(names(way)[7:9]) == ["answered", "puback"]
        assert names(way)[9:] == ["receipt", "cursor"]
        assert (way[1]["queue"], way[4]["queue"], way[5]["by"]) == ("parked", "replaying", "position")
        assert process.terminate() == 0


@pytest.mark.long
def test_a_trace_of_one_command_shows_no_other_and_no_trace_shows_nothing(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    settings = parking_settings(stack, namespaces)
    provision(settings)
    first, second = ([command(settings, "d", n) for n in numbers] for numbers in ((1, 2, 3), (4, 5)))
    with Devices(settings, lambda _device, _count: True) as devices:
        with PushProcess(settings, tmp_path, "traced", more=("--trace", "d-2", *JSON_LINES)) as process:
            write_commands(settings, first)
            devices.await_all(first)
            poll_for(lambda: "acked" in names(steps(process, "d-2")), 30, "its last step")
            assert process.terminate() == 0
            assert "d-1" not in process.log
            assert "d-3" not in process.log
        with PushProcess(settings, tmp_path, "plain", more=JSON_LINES) as process:
            write_commands(settings, second)
            devices.await_all(second)
            assert process.terminate() == 0
            assert "d-4" not in process.log
