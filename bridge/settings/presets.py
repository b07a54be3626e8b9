"""Presets: topic rules and typed tables for what many people run, one file each in ``conf/presets/``.

``ingest.presets`` selects them. It decides how a preset's file is read. What its rules mean, and whether they agree with
others, is decided by ``bridge.topic_rules`` like for any rule.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import yaml
from pydantic import Field

from bridge.settings.base import Section
from bridge.settings.files import conf_path
from bridge.settings.rules import TopicRule
from bridge.settings.tables import Decoding, TableDeclaration
from bridge.topic_templates import Filter

if TYPE_CHECKING:
    from bridge.settings.root import Settings

__all__ = ["Preset", "declared_readings", "declared_tables", "load_preset", "preset_names"]


class Preset(Section):
    """The content of a preset's file."""

    about: str = Field(description="What the preset is for.")
    signs: tuple[str, ...] = Field(
        min_length=1, description="MQTT filters; messages on one of them tell that somebody runs this."
    )
    rules: tuple[TopicRule, ...] = Field(min_length=1, description="The rules, in order.")
    tables: tuple[TableDeclaration, ...] = Field((), description="The typed tables.")
    readings: tuple[Decoding, ...] = Field(
        (), description="How the table readings takes its messages, like streaming.readings."
    )


@cache
def preset_names() -> tuple[str, ...]:
    """Return the names of the presets that come with this installation."""
    return tuple(sorted(file.stem for file in conf_path("presets").glob("*.yaml")))


@cache
def load_preset(name: str) -> Preset:
    """Return a preset by its name, one of ``preset_names``."""
    return Preset.model_validate(yaml.safe_load(conf_path(f"presets/{name}.yaml").read_text(encoding="utf-8")))


def declared_tables(settings: Settings) -> tuple[TableDeclaration, ...]:
    """Return the tables that are declared: one's own, then those of the presets that none of them replaces by its name."""
    found = {table.name.lower(): table for table in settings.streaming.tables}
    for name in settings.ingest.presets:
        for table in load_preset(name).tables:
            found.setdefault(table.name.lower(), table)
    return tuple(found.values())


def declared_readings(settings: Settings) -> tuple[Decoding, ...]:
    """Return how the table ``readings`` takes messages: one's own decodings, those of the presets, then all as they are."""
    found = list(settings.streaming.readings)
    presets = [one for name in settings.ingest.presets for one in load_preset(name).readings]
    for one in (*presets, Decoding(filter="#")):
        if not any(Filter.parse(own.filter).covers(Filter.parse(one.filter)) for own in found):
            found.append(one)
    return tuple(found)
