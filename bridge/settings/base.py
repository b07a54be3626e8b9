"""The base of all sections of the settings: it refuses unknown keys, and values are immutable."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["Section"]


class Section(BaseModel):
    """Base of a section of the settings."""

    # A value may be a secret, and pydantic prints inputs in errors by default.
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True)
