"""What the commands of the local servers print."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.settings.local import LocalSettings
from bridge.user_folders import default_stack_dir
from pulsebridge.local import lifecycle
from pulsebridge.local.state import ProcessId, StackState


@pytest.mark.parametrize("elsewhere", [True, False])
def test_status_names_the_command_that_stops_these_servers_and_no_others(
    elsewhere: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path if elsewhere else default_stack_dir()
    state = StackState("ready", ProcessId.own())
    monkeypatch.setattr(lifecycle, "read_state", lambda _folder: state)
    assert lifecycle.show_status(LocalSettings(data_dir=folder))
    flag = f" --data-dir {folder}" if elsewhere else ""
    assert f"Stop it with: pulsebridge down{flag}\n" in capsys.readouterr().out
