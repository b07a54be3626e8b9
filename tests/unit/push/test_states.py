"""The two transition tables: every state can be reached, nothing else can occur, and the drawing shows each transition."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest

from bridge.push.states import (
    COMMAND_TABLE,
    DEVICE_TABLE,
    PASSABLE,
    CommandEvent,
    CommandState,
    DeviceEvent,
    IllegalTransitionError,
    Mode,
    next_mode,
    next_state,
)


def drawing(title: str, table: Mapping[Any, Mapping[Any, Any]], events: type[IntEnum]) -> str:
    lines = [
        f"| {title} | " + " | ".join(event.name for event in events) + " |",
        "|---" * (len(events) + 1) + "|",
    ]
    for state, row in table.items():
        cells = (row[event].name if event in row else "" for event in events)
        lines.append(f"| **{state.name}** | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def draw_tables() -> str:
    """Return both tables as Markdown, as ARCHITECTURE.md has them."""
    return "\n".join((drawing("device", DEVICE_TABLE, DeviceEvent), drawing("command", COMMAND_TABLE, CommandEvent)))


def test_every_state_has_a_row_and_can_be_reached() -> None:
    assert set(DEVICE_TABLE) == set(Mode)
    assert {to for row in DEVICE_TABLE.values() for to in row.values()} == set(Mode)
    assert set(COMMAND_TABLE) == set(CommandState)
    assert {to for row in COMMAND_TABLE.values() for to in row.values()} == set(CommandState)


def test_every_event_occurs_in_some_state() -> None:
    assert {event for row in DEVICE_TABLE.values() for event in row} == set(DeviceEvent)
    assert {event for row in COMMAND_TABLE.values() for event in row} == set(CommandEvent)


@pytest.mark.parametrize("state", CommandState)
@pytest.mark.parametrize("event", CommandEvent)
def test_a_command_changes_as_the_table_lists_or_not_at_all(state: CommandState, event: CommandEvent) -> None:
    if event in COMMAND_TABLE[state]:
        assert next_state(state, event) is COMMAND_TABLE[state][event]
    else:
        with pytest.raises(IllegalTransitionError, match=f"{event.name} of a command that is {state.name}"):
            next_state(state, event)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("event", DeviceEvent)
def test_a_device_changes_as_the_table_lists_or_not_at_all(mode: Mode, event: DeviceEvent) -> None:
    if event in DEVICE_TABLE[mode]:
        assert next_mode(mode, event) is DEVICE_TABLE[mode][event]
    else:
        with pytest.raises(IllegalTransitionError, match=f"{event.name} of a device that is {mode.name}"):
            next_mode(mode, event)


def test_the_cursor_passes_only_what_needs_no_push() -> None:
    for state in PASSABLE:
        assert CommandEvent.PUSH not in COMMAND_TABLE[state]


def test_the_drawing_shows_each_transition_and_is_in_the_documentation() -> None:
    document = Path(__file__).resolve().parents[3] / "ARCHITECTURE.md"
    assert draw_tables() in document.read_text(encoding="utf-8")
    for drawn, table in zip(draw_tables().split("\n\n"), (DEVICE_TABLE, COMMAND_TABLE), strict=True):
        rows = {line.split("|")[1].strip(): line.split("|")[2:] for line in drawn.splitlines() if "**" in line}
        for state, row in table.items():
            cells = [cell.strip() for cell in rows[f"**{state.name}**"]]
            assert sorted(to.name for to in row.values()) == sorted(cell for cell in cells if cell)
