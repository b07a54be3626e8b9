"""Writes the default settings file from the model: each setting with default, description and limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from bridge.settings import Settings
from bridge.settings.fields import is_secret, model_within, parts_of, section_of

__all__ = ["default_yaml", "yaml_value"]

_HEAD: Final = """\
# Every setting of Pulsebridge with its default. `pulsebridge config default` writes it; a test compares it.
#
# Precedence: flag (--set mqtt.host=…) > environment (PULSEBRIDGE_MQTT__HOST) > this file > default.
# A secret may also come from a file: password_file here, or PULSEBRIDGE_MQTT__PASSWORD_FILE.
# Read by --config PATH, else $PULSEBRIDGE_CONFIG, else ./pulsebridge.yaml. Copy only what you change.
"""
_LIMITS: Final = {"ge": "at least {}", "gt": "more than {}", "le": "at most {}", "lt": "less than {}"}


def default_yaml() -> str:
    """Return the text of ``conf/default.yaml``."""
    return _HEAD + "".join(f"\n{line}" if not line.startswith((" ", "-")) else line for line in _section(Settings, ""))


def _section(model: type[BaseModel], indent: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        section = section_of(field.annotation)
        if section is None:
            yield from _setting(name, field, indent)
        else:
            yield (
                f"# {field.description}\n{name}:\n"
                if not indent
                else f"{indent}# {field.description}\n{indent}{name}:\n"
            )
            yield from _section(section, indent + "  ")


def _setting(name: str, field: FieldInfo, indent: str) -> Iterator[str]:
    yield f"{indent}# {field.description}{_bounds(field)}\n"
    yield f"{indent}{name}: {yaml_value(field.get_default(call_default_factory=True))}\n"
    member = model_within(field.annotation)
    if member is None:
        return
    mark = "- "
    for inner, known in member.model_fields.items():
        default = "…" if known.is_required() else yaml_value(known.get_default(call_default_factory=True))
        yield f"{indent}#  {mark}{inner}: {default}  # {known.description}\n"
        mark = "  "


def _bounds(field: FieldInfo) -> str:
    notes = []
    for part in parts_of(field.annotation):
        if get_origin(part) is Literal:
            notes.append("one of " + ", ".join(str(v) for v in get_args(part)))
    limits = {key: getattr(limit, key) for limit in field.metadata for key in _LIMITS if hasattr(limit, key)}
    if {"ge", "le"} <= limits.keys():
        notes.append(f"{limits.pop('ge')} to {limits.pop('le')}")
    notes += [_LIMITS[key].format(limit) for key, limit in limits.items()]
    if is_secret(field.annotation):
        notes.append("secret")
    return f" [{'; '.join(notes)}]" if notes else ""


def yaml_value(default: Any) -> str:
    """Return a value as YAML on one line."""
    if isinstance(default, tuple | list):
        default = [v.model_dump(mode="json") if isinstance(v, BaseModel) else v for v in default]
    elif default is not None and not isinstance(default, str | int | float | bool | dict):
        default = str(default)
    text = yaml.safe_dump(default, default_flow_style=True, width=10_000, allow_unicode=True, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")
