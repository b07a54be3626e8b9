"""The metrics endpoint: there while the block runs, gone after it, and clear about a taken port."""

from __future__ import annotations

import urllib.request

import pytest

from bridge.errors import TerminalError
from bridge.local.ports import free_ports, is_free
from bridge.metrics import serving
from bridge.settings.metrics import MetricsSettings


def test_metrics_are_served_on_loopback_while_the_block_runs() -> None:
    (port,) = free_ports(1)
    with serving(MetricsSettings(port=port)):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert b"# HELP" in answer.read()
        with pytest.raises(TerminalError, match=r"metrics\.port"), serving(MetricsSettings(port=port)):
            pass
    assert is_free(port)


def test_port_0_serves_nothing() -> None:
    with serving(MetricsSettings()):
        pass
