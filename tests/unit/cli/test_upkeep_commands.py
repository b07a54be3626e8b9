from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from bridge.errors import ConfigError
from pulsebridge.cli import quarantine as quarantine_commands
from pulsebridge.cli import tables as tables_commands
from pulsebridge.cli.tables import moment


def test_a_time_is_utc_unless_it_says_otherwise() -> None:
    assert moment("2026-01-01") == "2026-01-01T00:00:00+00:00"
    assert moment("2026-01-02T01:00:00+01:00") == "2026-01-02T01:00:00+01:00"
    assert moment("") == ""
    with pytest.raises(ConfigError, match="'yesterday' is not a time"):
        moment("yesterday")


def test_forget_asks_and_does_nothing_without_a_yes() -> None:
    app = typer.Typer()
    tables_commands.register(app)
    answer = CliRunner().invoke(app, ["tables", "forget", "band-17"], input="n\n")
    assert answer.exit_code == 1
    assert "band-17 for good?" in answer.output


def test_the_commands_say_what_they_take() -> None:
    app = typer.Typer()
    tables_commands.register(app)
    quarantine_commands.register(app)
    for line in (
        "tables rebuild",
        "tables optimise",
        "quarantine list",
        "quarantine show",
        "quarantine replay",
    ):
        answer = CliRunner().invoke(app, [*line.split(), "--help"])
        assert answer.exit_code == 0
        assert f"pulsebridge {line}" in answer.output
