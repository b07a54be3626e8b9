"""What a line of the log looks like, and that the level holds."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from bridge import logs
from bridge.settings.log import LogSettings


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_lines_name_logger_level_time_and_event(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(LogSettings(format="json"))
    structlog.get_logger("ingest").warning("topic is blocked", topic="a/b")
    line = json.loads(capsys.readouterr().out)
    assert (line["logger"], line["level"], line["event"], line["topic"]) == (
        "ingest",
        "warning",
        "topic is blocked",
        "a/b",
    )
    assert line["timestamp"].endswith("Z")


def test_below_the_level_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(LogSettings(level="warning"))
    structlog.get_logger("push").info("healthy")
    structlog.get_logger("push").error("broken")
    out = capsys.readouterr().out
    assert "healthy" not in out
    assert "broken" in out
