"""The commands of the push tier, run in this process: devices list and show, commands show and resend."""

from __future__ import annotations

import json
from typing import Any

import typer
from click.testing import Result
from typer.testing import CliRunner

from bridge.settings import Settings
from pulsebridge.cli.push import register
from tests.support.push import push_arguments

__all__ = ["asked", "run"]


def run(settings: Settings, *arguments: str) -> Result:
    """Run a command of push's in this process."""
    app = typer.Typer()
    register(app)
    return CliRunner().invoke(app, [*arguments, *push_arguments(settings)])


def asked(settings: Settings, *arguments: str) -> dict[str, Any]:
    done = run(settings, *arguments, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found
