"""Settings of the log on stdout."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from bridge.settings.base import COMMON, Section

__all__ = ["LogSettings"]


class LogSettings(Section):
    """The level and the format of the log."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        BeforeValidator(lambda one: one.lower() if isinstance(one, str) else one),
    ] = Field("info", json_schema_extra=COMMON)
    """Lowest level that is shown; a healthy process logs nothing above info."""
    format: Literal["console", "json"] = "console"
    """Lines of text, or one JSON object per line for a collector."""
