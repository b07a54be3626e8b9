"""A module's clock, set by the test."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest

__all__ = ["set_clock"]


def set_clock(monkeypatch: pytest.MonkeyPatch, module: ModuleType, now: Callable[[], float] = lambda: 0.0) -> None:
    """Let ``time.monotonic`` of one module, which imports ``time``, give what ``now`` returns; it stands still by default."""
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=now))
