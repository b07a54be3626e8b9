"""Presets: routes and typed tables for common devices, each in a file of ``conf/presets/``.

``ingest.presets`` selects them. This module reads the files. ``bridge.routing.rules`` validates their routes like all
others.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import yaml
from pydantic import Field

from bridge.routing.templates import Filter
from bridge.settings.base import Section
from bridge.settings.files import conf_path
from bridge.settings.rules import TopicRule
from bridge.settings.tables import Decoding, TableDeclaration

if TYPE_CHECKING:
    from bridge.settings.root import Settings

__all__ = ["Preset", "declared_decoders", "declared_tables", "load_preset", "preset_names"]


class Preset(Section):
    """The content of a preset's file."""

    about: str
    """Purpose of the preset."""
    signs: tuple[str, ...] = Field(min_length=1)
    """MQTT filters; a message that matches one shows that the preset is of use."""
    routes: tuple[TopicRule, ...] = Field(min_length=1)
    """The routes, in order."""
    tables: tuple[TableDeclaration, ...] = ()
    """The typed tables."""
    decoders: tuple[Decoding, ...] = ()
    """Decodings of its messages for the table readings, like streaming.decoders."""


@cache
def preset_names() -> tuple[str, ...]:
    """Return the names of the presets of this installation."""
    return tuple(sorted(file.stem for file in conf_path("presets").glob("*.yaml")))


@cache
def load_preset(name: str) -> Preset:
    """Return a preset by its name, one of ``preset_names``."""
    return Preset.model_validate(yaml.safe_load(conf_path(f"presets/{name}.yaml").read_text(encoding="utf-8")))


def declared_tables(settings: Settings) -> tuple[TableDeclaration, ...]:
    """Return the declared tables: ``streaming.tables``, then those of presets with other names."""
    found = {table.name.lower(): table for table in settings.streaming.tables}
    for name in settings.ingest.presets:
        for table in load_preset(name).tables:
            found.setdefault(table.name.lower(), table)
    return tuple(found.values())


def declared_decoders(settings: Settings) -> tuple[Decoding, ...]:
    """Return the decodings for the table ``readings``: ``streaming.decoders``, those of presets, then the default."""
    found = list(settings.streaming.decoders)
    presets = [one for name in settings.ingest.presets for one in load_preset(name).decoders]
    for one in (*presets, Decoding(filter="#")):
        if not any(Filter.parse(before.filter).covers(Filter.parse(one.filter)) for before in found):
            found.append(one)
    return tuple(found)
