"""Inspects the model of the settings: paths, types, secrets, and the nearest known name."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import SecretBytes, SecretStr
from pydantic.fields import FieldInfo

from bridge.settings.base import Section
from bridge.settings.units import Duration, Size

__all__ = [
    "FILE_SUFFIX",
    "field_at",
    "has_word_choices",
    "is_common",
    "is_optional",
    "is_plain_text",
    "is_secret",
    "leaves",
    "nearest",
    "parts_of",
    "section_of",
    "with_unit",
]

FILE_SUFFIX = "_file"
"""With this suffix, the key of a secret has the path of its file."""


def parts_of(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the annotation alone."""
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def is_class(annotation: Any, *bases: type) -> bool:
    """Return whether an annotation is a plain subclass of ``bases``."""
    # On Python 3.10 isinstance(tuple[int, ...], type) is true, but issubclass raises.
    return get_origin(annotation) is None and isinstance(annotation, type) and issubclass(annotation, bases)


def section_of(annotation: Any) -> type[Section] | None:
    """Return the model in an annotation, None for a plain value."""
    return next((part for part in parts_of(annotation) if is_class(part, Section)), None)


def is_secret(annotation: Any) -> bool:
    """Return whether a value of this type must never be printed."""
    return any(is_class(p, SecretStr, SecretBytes) for p in parts_of(annotation))


def is_common(field: FieldInfo) -> bool:
    """Return whether most installations set it: a field with ``json_schema_extra=COMMON``."""
    return isinstance(field.json_schema_extra, dict) and bool(field.json_schema_extra.get("common"))


def with_unit(annotation: Any, limit: float) -> str:
    """Return the text of a limit of a setting, with the unit of a duration or a size."""
    if any(is_class(part, Duration) for part in parts_of(annotation)):
        return Duration(limit).text
    if any(is_class(part, Size) for part in parts_of(annotation)):
        return Size(int(limit)).text
    return str(limit)


def is_optional(annotation: Any) -> bool:
    """Return whether the value may be absent."""
    return type(None) in parts_of(annotation)


def is_plain_text(annotation: Any) -> bool:
    """Return whether a text is the value itself. Lists, mappings and choices of numbers are read as YAML."""
    return not any(
        get_origin(p) in (tuple, list, dict, set, frozenset)
        or section_of(p) is not None
        or (get_origin(p) is Literal and not has_word_choices(p))
        for p in parts_of(annotation)
    )


def has_word_choices(annotation: Any) -> bool:
    """Return whether only certain words are valid, so that YAML's ``5`` and ``3.1`` are texts."""
    return any(get_origin(p) is Literal and all(isinstance(v, str) for v in get_args(p)) for p in parts_of(annotation))


def leaves(model: type[Section], prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
    """Yield the path and the field of each setting, in the order of the model."""
    for name, field in model.model_fields.items():
        section = section_of(field.annotation)
        if section is None:
            yield (*prefix, name), field
        else:
            yield from leaves(section, (*prefix, name))


def model_within(annotation: Any) -> type[Section] | None:
    """Return the model of a section, or of the members of a list of sections."""
    candidates = (one for part in parts_of(annotation) for one in (part, *get_args(part)))
    return next((one for one in candidates if is_class(one, Section)), None)


def fields_at(model: type[Section], path: Sequence[str | int]) -> Mapping[str, FieldInfo]:
    """Return the fields of the section at a path, also in lists of sections; none if it does not exist."""
    fields: Mapping[str, FieldInfo] = model.model_fields
    for name in path:
        if isinstance(name, str):
            section = model_within(fields[name].annotation) if name in fields else None
            fields = {} if section is None else section.model_fields
    return fields


def field_at(model: type[Section], path: Sequence[str | int]) -> FieldInfo | None:
    """Return the field at a path, also in lists of sections; None if it does not exist."""
    names = [part for part in path if isinstance(part, str)]
    return fields_at(model, names[:-1]).get(names[-1]) if names else None


def nearest(model: type[Section], path: tuple[str | int, ...]) -> str | None:
    """Return the known path that is most similar to an unknown one, or None."""
    known = [".".join(p) for p, _ in leaves(model)]
    joined = "_".join(str(p) for p in path)
    for name in known:  # MQTT_HOST: one underscore instead of two
        if name.replace(".", "_") == joined:
            return name
    fields = fields_at(model, path[:-1])
    names = [*fields, *(name + FILE_SUFFIX for name, field in fields.items() if is_secret(field.annotation))]
    near = difflib.get_close_matches(str(path[-1]), names, n=1, cutoff=0.6)
    if near:
        return ".".join(str(p) for p in (*path[:-1], near[0]))
    near = difflib.get_close_matches(".".join(str(p) for p in path), known, n=1, cutoff=0.6)
    if near:
        return near[0]
    # the right name in the wrong section
    same = [k for k in known if k.rsplit(".", 1)[-1] == path[-1]]
    return same[0] if len(same) == 1 else None
