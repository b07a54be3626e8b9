"""Settings of the log on stdout."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bridge.settings.base import Section

__all__ = ["LogSettings"]


class LogSettings(Section):
    """How much is logged, and in which form."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lowest level that is shown; healthy running says nothing above info."
    )
    format: Literal["console", "json"] = Field(
        "console", description="Lines for people, or one JSON object per line for a collector."
    )
