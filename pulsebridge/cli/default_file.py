"""Writes the default settings file from the model: each setting with default, description and limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from bridge.settings import Settings
from bridge.settings.base import Section
from bridge.settings.fields import is_common, is_secret, model_within, parts_of, section_of, with_unit
from bridge.settings.units import Duration, Size

__all__ = ["bounds_of", "default_yaml", "yaml_value"]

_HEAD: Final = """\
# Every setting of Pulsebridge with its default. `pulsebridge config default` writes it; a test compares it.
#
# Precedence: flag (--set mqtt.host=…) > environment (PULSEBRIDGE_MQTT__HOST) > this file > default.
# A secret may also come from a file: password_file here, or PULSEBRIDGE_MQTT__PASSWORD_FILE.
# Read by --config PATH, else $PULSEBRIDGE_CONFIG, else ./pulsebridge.yaml. Copy only what you change.
# Durations have a unit (ms, s, m, h, d), and so do sizes (B, KB, KiB, MB, MiB, GB, GiB).
# The settings that most installations set are marked as common; `pulsebridge config default --common` prints only them.
"""
_HEAD_COMMON: Final = """\
# The common settings with their defaults; `pulsebridge config default` prints all of them.
"""
_LIMITS: Final = {"ge": "at least {}", "gt": "more than {}", "le": "at most {}", "lt": "less than {}"}


def default_yaml(*, common: bool = False) -> str:
    """Return the text of ``conf/default.yaml``; with ``common`` only the settings that most installations set."""
    lines = _section(Settings, "", common)
    head = _HEAD_COMMON if common else _HEAD
    return head + "".join(f"\n{line}" if not line.startswith((" ", "-")) else line for line in lines)


def _section(model: type[Section], indent: str, common: bool) -> Iterator[str]:
    for name, field in model.model_fields.items():
        section = section_of(field.annotation)
        if section is None:
            if is_common(field) or not common:
                yield from _setting(model, name, indent)
            continue
        lines = list(_section(section, indent + "  ", common))
        if lines:
            yield f"{indent}# {model.description_of(name)}\n{indent}{name}:\n"
            yield from lines


def _setting(model: type[Section], name: str, indent: str) -> Iterator[str]:
    field = model.model_fields[name]
    yield f"{indent}# {model.description_of(name)}{bounds_of(field)}\n"
    yield f"{indent}{name}: {yaml_value(field.get_default(call_default_factory=True))}\n"
    member = model_within(field.annotation)
    if member is None:
        return
    mark = "- "
    for inner, known in member.model_fields.items():
        default = "…" if known.is_required() else yaml_value(known.get_default(call_default_factory=True))
        yield f"{indent}#  {mark}{inner}: {default}  # {member.description_of(inner)}\n"
        mark = "  "


def bounds_of(field: FieldInfo) -> str:
    """Return the limits of a setting, in brackets after a space; empty without any."""
    notes = []
    for part in parts_of(field.annotation):
        if get_origin(part) is Literal:
            notes.append("one of " + ", ".join(str(v) for v in get_args(part)))
    limits = {
        key: with_unit(field.annotation, getattr(limit, key))
        for limit in field.metadata
        for key in _LIMITS
        if hasattr(limit, key)
    }
    if {"ge", "le"} <= limits.keys():
        notes.append(f"{limits.pop('ge')} to {limits.pop('le')}")
    notes += [_LIMITS[key].format(limit) for key, limit in limits.items()]
    if is_secret(field.annotation):
        notes.append("secret")
    if is_common(field):
        notes.append("common")
    return f" [{'; '.join(notes)}]" if notes else ""


def yaml_value(default: Any) -> str:
    """Return a value as YAML on one line."""
    if isinstance(default, tuple | list):
        default = [v.model_dump(mode="json") if isinstance(v, BaseModel) else v for v in default]
    elif isinstance(default, Duration | Size):
        default = default.text
    elif default is not None and not isinstance(default, str | int | float | bool | dict):
        default = str(default)
    text = yaml.safe_dump(default, default_flow_style=True, width=10_000, allow_unicode=True, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")
