"""Presets: topic rules for what many people run, one file each in ``conf/presets/``, selected by ``ingest.presets``.

It decides how a preset's file is read. What its rules mean, and whether they agree with others, is decided by
``bridge.topic_rules`` like for any rule.
"""

from __future__ import annotations

from functools import cache

import yaml
from pydantic import Field

from bridge.settings.base import Section
from bridge.settings.files import conf_path
from bridge.settings.rules import TopicRule

__all__ = ["Preset", "load_preset", "preset_names"]


class Preset(Section):
    """The content of a preset's file."""

    about: str = Field(description="What the preset is for.")
    signs: tuple[str, ...] = Field(
        min_length=1, description="MQTT filters; messages on one of them tell that somebody runs this."
    )
    rules: tuple[TopicRule, ...] = Field(min_length=1, description="The rules, in order.")


@cache
def preset_names() -> tuple[str, ...]:
    """Return the names of the presets that come with this installation."""
    return tuple(sorted(file.stem for file in conf_path("presets").glob("*.yaml")))


@cache
def load_preset(name: str) -> Preset:
    """Return a preset by its name, one of ``preset_names``."""
    return Preset.model_validate(
        yaml.safe_load(conf_path(f"presets/{name}.yaml").read_text(encoding="utf-8"))
    )
