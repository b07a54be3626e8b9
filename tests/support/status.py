"""``pulsebridge status`` with given settings."""

from __future__ import annotations

from pathlib import Path

import typer
import yaml
from click.testing import Result
from typer.testing import CliRunner

from bridge.settings import Settings
from pulsebridge.cli.local import register

__all__ = ["status"]


def status(settings: Settings, folder: Path, *arguments: str) -> Result:
    """Run the command in this process."""
    config = folder / "pulsebridge.yaml"
    config.write_text(yaml.safe_dump(settings.model_dump(mode="json", exclude_defaults=True)), encoding="utf-8")
    app = typer.Typer()
    register(app)
    return CliRunner().invoke(app, ["status", *arguments, "-c", str(config)])
