"""What every section of the settings shares: unknown keys are refused, values do not change after loading."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["Section"]


class Section(BaseModel):
    """Base of a section of the settings."""

    # A value may be a secret, and pydantic would print it with each error.
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True)
