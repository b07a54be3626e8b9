"""The base of all sections of the settings: it refuses unknown keys, and values are immutable."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

__all__ = ["COMMON", "Section", "checked_by"]

COMMON: Final[dict[str, Any]] = {"common": True}
"""``json_schema_extra`` of the settings that most installations set: the short list of ``pulsebridge config``."""


def checked_by(check: Callable[[str], object]) -> AfterValidator:
    """Return a validator that leaves a text unchanged, and refuses it if ``check`` raises ValueError. None is accepted."""

    def unchanged(text: str | None) -> str | None:
        if text is not None:
            check(text)
        return text

    return AfterValidator(unchanged)


class Section(BaseModel):
    """Base of a section of the settings. The text below a setting is its description."""

    # A value may be a secret, and pydantic prints inputs in errors by default.
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True)

    @classmethod
    def description_of(cls, name: str) -> str:
        """Return the description of a setting on one line; that of a section is the first line of its class.

        It reads the source at its use, for documents alone: with pydantic's ``use_attribute_docstrings`` each start of
        a process would read the source of all sections, which takes longer than their definition.
        """
        field = cls.model_fields[name]
        below = (
            _texts(owner.__module__).get((owner.__name__, name)) for owner in cls.__mro__ if issubclass(owner, Section)
        )
        text = (
            field.description or next(filter(None, below), None) or str(field.annotation.__doc__).partition("\n\n")[0]
        )
        return " ".join(text.split())

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        found = handler(schema)
        for name, one in handler.resolve_ref_schema(found)["properties"].items():
            one.setdefault("description", cls.description_of(name))
        return found


@cache
def _texts(module: str) -> dict[tuple[str, str], str]:
    """Return the texts below the fields of the classes of a module, by class and field."""
    classes = [one for one in ast.parse(inspect.getsource(sys.modules[module])).body if isinstance(one, ast.ClassDef)]
    return {
        (one.name, field.target.id): str(text.value.value)
        for one in classes
        for field, text in pairwise(one.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }
