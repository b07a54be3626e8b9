"""The settings and the folder of a run of the demo."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.errors import ConfigError
from pulsebridge.audit.tables import TABLES
from pulsebridge.demo.plan import QUICK
from pulsebridge.demo.run_folder import RunFolder
from pulsebridge.demo.setup import DemoOptions, local_settings, plan_run, write_settings
from streaming.loading import pipeline_of
from streaming.suites import Suites


def test_a_slow_machine_may_have_more_time_to_start_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the error of a server that is not ready in time says."""
    usual = local_settings(DemoOptions(Path("run"))).start_timeout
    sets = [f"local.start_timeout={usual * 2}s"]
    assert local_settings(DemoOptions(Path("run"), sets=sets)).start_timeout == usual * 2
    monkeypatch.setenv("PULSEBRIDGE_LOCAL__START_TIMEOUT", f"{usual * 3}s")
    assert local_settings(DemoOptions(Path("run"))).start_timeout == usual * 3


def test_the_demo_declares_its_tables_with_the_suite_of_the_run(tmp_path: Path) -> None:
    options = DemoOptions(tmp_path / "run", QUICK)
    run = RunFolder(options.out)
    plan_run(run, options)
    settings = write_settings(run, options, local_settings(options))
    pipeline = pipeline_of(settings)
    assert list(pipeline.tables) == [name for name in TABLES if name != "quarantine"]
    suite = pipeline.tables["measurements"].suite
    assert Suites(settings.streaming.suites).suite(suite or "").file.startswith(str(run.root))


def test_a_folder_that_is_not_of_a_run_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no manifest"):
        RunFolder(tmp_path).manifest()
    RunFolder(tmp_path).manifest_file.write_text('{"v": 99}')
    with pytest.raises(ConfigError, match="version 99"):
        RunFolder(tmp_path).manifest()
