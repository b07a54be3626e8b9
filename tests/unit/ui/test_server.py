"""The server: what a user reads if it cannot start."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bridge.errors import TerminalError
from bridge.settings import Settings
from bridge.settings.ui import UiSettings
from pulsebridge.ui.server import serve


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(TerminalError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use.*--port"):
            serve(Settings(ui=UiSettings(port=port)), print)


def test_an_address_of_another_machine_is_named() -> None:
    settings = UiSettings(host="192.0.2.1", port=0, allow_anonymous=True)
    with pytest.raises(TerminalError, match=r"cannot listen on 192\.0\.2\.1"):
        serve(Settings(ui=settings), print)


def test_a_name_that_does_not_exist_is_named() -> None:
    settings = UiSettings(host="none.invalid", allow_anonymous=True)
    with pytest.raises(TerminalError, match=r"ui\.host none\.invalid"):
        serve(Settings(ui=settings), print)


def test_without_the_extra_the_command_names_it(tmp_path: Path) -> None:
    code = "import sys; sys.modules['uvicorn'] = None; from pulsebridge.cli.app import main; main()"
    ended = subprocess.run([sys.executable, "-c", code, "ui"], capture_output=True, text=True, cwd=tmp_path)
    assert ended.returncode == 1
    assert ended.stderr == (
        'pulsebridge: the Python package uvicorn is not installed — pip install "pulsebridge[ui]"\n'
    )
