"""The base of all sections of the settings: it refuses unknown keys, and values are immutable."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict

__all__ = ["COMMON", "Section"]

COMMON: Final[dict[str, Any]] = {"common": True}
"""``json_schema_extra`` of the settings that most installations set: the short list of ``pulsebridge config``."""


class Section(BaseModel):
    """Base of a section of the settings."""

    # A value may be a secret, and pydantic prints inputs in errors by default.
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True)
