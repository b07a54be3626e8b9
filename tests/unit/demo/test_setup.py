"""What a run of the demo takes from the settings of its user."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsebridge.demo.setup import DemoOptions, local_settings


def test_a_slow_machine_may_have_more_time_to_start_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the error of a server that is not ready in time says."""
    usual = local_settings(DemoOptions(Path("run"))).start_timeout_s
    sets = [f"local.start_timeout_s={usual * 2}"]
    assert local_settings(DemoOptions(Path("run"), sets=sets)).start_timeout_s == usual * 2
    monkeypatch.setenv("PULSEBRIDGE_LOCAL__START_TIMEOUT_S", str(usual * 3))
    assert local_settings(DemoOptions(Path("run"))).start_timeout_s == usual * 3
