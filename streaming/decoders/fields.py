"""Builds SQL for the declared fields of a payload, and for its possible leftovers.

Parsing twice costs twice. So a document is parsed a second time only if a count allows leftovers. Each JSON key is a
quoted text before a colon, and each present field has one. If the keys are not more than the fields, each key is a
declared field and fits its type.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from streaming.sql import ddl_of, literal, quoted

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

__all__ = ["MAP", "JsonFields", "TextFields"]

MAP: Final = "map<string,variant>"
_OPTIONS: Final = (
    "map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '_bad', "
    "'allowNonNumericNumbers', 'false', 'allowSingleQuotes', 'false')"
)
_KEYS: Final = r"regexp_count({0}, r'\"\s*:')"
_WHOLE: Final = ("tinyint", "smallint", "int", "bigint", "string")
_MORE: Final = 16
"""Most unknown fields of a CSV line after the named ones."""


@dataclass(frozen=True)
class JsonFields:
    """The fields of a JSON object. ``hidden`` fields are also read, as text, and are not columns."""

    declared: StructType
    hidden: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def parsed(self, text: str) -> str:
        """Return the parsed document: its fields ``d``, and ``_bad`` for invalid JSON or unfit values.

        It is wrapped in an object, because Spark ignores text after the end of a document.
        """
        fields = [f"{quoted(f.name)}: {ddl_of(f.dataType)}" for f in self.declared.fields]
        fields += [f"{quoted(name)}: string" for name in self.hidden]
        return (
            f"from_json(concat('{{\"d\":', {text}, '}}'), "
            f"{literal('d struct<' + ', '.join(fields) + '>, _bad string')}, {_OPTIONS})"
        )

    def all_read(self, parsed: str, text: str) -> str:
        """Return whether the document is an object whose keys are all fields that fit."""
        present = [_present(f"{parsed}.d.{quoted(f.name)}", f.dataType) for f in self.declared.fields]
        present += [f"int({parsed}.d.{quoted(name)} IS NOT NULL)" for name in self.hidden]
        return f"({parsed}._bad IS NULL AND {parsed}.d IS NOT NULL AND {_KEYS.format(text)} <= {' + '.join(present) or '0'})"

    def fields(self, parsed: str) -> str:
        """Return the declared fields as a struct, with null for infinite numbers."""
        return _finite(f"{parsed}.d", self.declared, also=bool(self.hidden))

    def left(self, document: str, parsed: str) -> str:
        """Return a wrapped document's unknown and unfit fields as a map of variants. It is null without an object."""
        tree: dict[str, Any] = {f.name: f.dataType for f in self.declared.fields}
        tree |= dict.fromkeys(self.hidden)
        for path in self.ignored:
            _ignore(tree, path.split("."))
        return _left(f"try_variant_get({document}, '$.d', '{MAP}')", tree, f"{parsed}.d", 0)

    def text_at(self, steps: Sequence[str | int], parsed: str) -> str | None:
        """Return the text at a path if its parsed type preserves it."""
        if len(steps) == 1 and steps[0] in self.hidden:
            return f"{parsed}.d.{quoted(str(steps[0]))}"
        kind: Any = self.declared
        column = f"{parsed}.d"
        for step in steps:
            fields = {f.name: f.dataType for f in getattr(kind, "fields", ())}
            if step not in fields:
                return None
            kind, column = fields[str(step)], f"{column}.{quoted(str(step))}"
        return f"CAST({column} AS STRING)" if kind.simpleString() in _WHOLE else None


@dataclass(frozen=True)
class TextFields:
    """The fields of a CSV line, or the one field of a raw payload. Each is text, cast to its type."""

    declared: StructType
    names: tuple[str, ...]
    separator: str | None = None
    """None: the payload is the field."""
    ignored: tuple[str, ...] = ()

    @property
    def _all(self) -> tuple[str, ...]:
        if self.separator is None:
            return self.names
        more = (f"field{n}" for n in range(len(self.names) + 1, len(self.names) + 1 + _MORE))
        return (*self.names, *(name for name in more if name not in self.names))

    def parsed(self, text: str) -> str:
        """Return the fields as text. Several lines or far too many fields give null, because Spark would raise."""
        if self.separator is None:
            return f"named_struct({literal(self.names[0])}, {text})"
        separator = literal(self.separator)
        schema = literal(", ".join(f"{quoted(name)} STRING" for name in self._all))
        line = f"regexp_replace({text}, r'\\r?\\n$', '')"
        return (
            f"CASE WHEN length(trim({line})) > 0 AND NOT {line} RLIKE r'[\\r\\n]' AND length({line}) - "
            f"length(replace({line}, {separator}, '')) < {len(self._all)} THEN "
            f"from_csv({line}, {schema}, map('mode', 'PERMISSIVE', 'sep', {separator})) END"
        )

    def all_read(self, parsed: str, text: str) -> str:
        """Return whether leftovers are impossible. That depends on the fields, so it is false."""
        return "false"

    def fields(self, parsed: str) -> str:
        """Return the declared fields as a struct."""
        pairs = (f"{literal(f.name)}, {self._typed(f.name, f.dataType, parsed)}" for f in self.declared.fields)
        return f"named_struct({', '.join(pairs)})"

    def left(self, document: str, parsed: str) -> str:
        """Return unknown and unfit fields as a map of texts; null without fields."""
        kinds = {f.name: f.dataType for f in self.declared.fields}
        pairs = []
        for name in self._all:
            if name in self.ignored:
                continue
            given = f"{parsed}.{quoted(name)}"
            if name in kinds:
                given = f"CASE WHEN {self._typed(name, kinds[name], parsed)} IS NULL THEN {given} END"
            pairs.append(f"{literal(name)}, {given}")
        made = f"map({', '.join(pairs)})" if pairs else "map('', CAST(NULL AS STRING))"
        return f"CASE WHEN {parsed} IS NOT NULL THEN map_filter({made}, (k, v) -> v != '') END"

    def text_at(self, steps: Sequence[str | int], parsed: str) -> str | None:
        """Return the text of a field."""
        if not steps and self.separator is None:
            return f"{parsed}.{quoted(self.names[0])}"
        return f"{parsed}.{quoted(str(steps[0]))}" if len(steps) == 1 and steps[0] in self.names else None

    def _typed(self, name: str, kind: DataType, parsed: str) -> str:
        if name not in self.names:
            return f"CAST(NULL AS {kind.simpleString()})"
        return _no_infinity(f"try_cast({parsed}.{quoted(name)} AS {kind.simpleString()})", kind)


def _is_float(kind: DataType) -> bool:
    return kind.simpleString() in ("double", "float")


def _no_infinity(column: str, kind: DataType) -> str:
    # NaN is greater than any number
    return f"CASE WHEN abs({column}) < double('infinity') THEN {column} END" if _is_float(kind) else column


def _struct_fields(kind: DataType) -> Any:
    return kind.fields if kind.typeName() == "struct" else ()  # type: ignore[attr-defined]


def _present(column: str, kind: DataType) -> str:
    """Return the number of present fields: the column, and all those below it."""
    one = (
        f"int(coalesce(abs({column}) < double('infinity'), false))" if _is_float(kind) else f"int({column} IS NOT NULL)"
    )
    below = [_present(f"{column}.{quoted(f.name)}", f.dataType) for f in _struct_fields(kind)]
    return " + ".join([one, *below])


def _has_float(kind: DataType) -> bool:
    return _is_float(kind) or any(_has_float(f.dataType) for f in _struct_fields(kind))


def _finite(column: str, kind: DataType, *, also: bool = False) -> str:
    if _is_float(kind):
        return _no_infinity(column, kind)
    if not (also or _has_float(kind)):
        return column
    pairs = (f"{literal(f.name)}, {_finite(f'{column}.{quoted(f.name)}', f.dataType)}" for f in _struct_fields(kind))
    return f"CASE WHEN {column} IS NOT NULL THEN named_struct({', '.join(pairs)}) END"


def _ignore(tree: dict[str, Any], names: Sequence[str]) -> None:
    """Add an ignored field to the tree of known fields. Declared fields stay."""
    name, *rest = names
    below = tree.get(name)
    if below is not None and not isinstance(below, dict) and below.typeName() == "struct" and rest:
        below = {f.name: f.dataType for f in below.fields}
        tree[name] = below
    if not rest:
        tree.setdefault(name, None)
    elif isinstance(below, dict) or name not in tree:
        _ignore(tree.setdefault(name, {}), rest)


def _left(here: str, tree: Mapping[str, Any], parsed: str | None, depth: int) -> str:
    """Return the entries of a map of variants that the tree does not have. A value None in the tree is ignored."""
    key, value = f"k{depth}", f"v{depth}"
    cases = []
    for name, kind in tree.items():
        column = None if parsed is None else f"{parsed}.{quoted(name)}"
        cases.append(f"WHEN {literal(name)} THEN {_of_field(value, kind, column, depth)}")
    known = f"CASE {key} {' '.join(cases)} ELSE {value} END" if cases else value
    return f"map_filter(transform_values({here}, ({key}, {value}) -> {known}), ({key}, {value}) -> {value} IS NOT NULL)"


def _of_field(value: str, kind: Any, column: str | None, depth: int) -> str:
    """Return the leftover of a known field's value, null for none."""
    if kind is None:
        return "NULL"
    given = f"CASE WHEN NOT is_variant_null({value}) THEN {value} END"
    if isinstance(kind, Mapping) or kind.typeName() == "struct":
        below = kind if isinstance(kind, Mapping) else {f.name: f.dataType for f in kind.fields}
        inside = f"try_variant_get({value}, '$', '{MAP}')"
        # The lambda names the leftover: written twice on each level, it would double with each level.
        left, some = f"array({_left(inside, below, column, depth + 1)})", f"m{depth}"
        made = f"transform({left}, {some} -> CASE WHEN size({some}) > 0 THEN to_variant_object({some}) END)[0]"
        return f"CASE WHEN {inside} IS NULL THEN {given} ELSE {made} END"
    assert column is not None
    if kind.typeName() in ("array", "map"):
        return f"CASE WHEN {_is_partial(value, kind, column)} THEN {given} END"
    fits = f"abs({column}) < double('infinity')" if _is_float(kind) else f"{column} IS NOT NULL"
    return f"CASE WHEN NOT coalesce({fits}, false) THEN {given} END"


def _is_partial(value: str, kind: DataType, column: str) -> str:
    """Return whether an array or a map was parsed partly. Then it is left over as a whole."""
    schema = literal(f"d {ddl_of(kind)}, _bad string")
    unfit = f"from_json(concat('{{\"d\":', to_json({value}), '}}'), {schema}, {_OPTIONS})._bad IS NOT NULL"
    keys = functools.partial(_KEYS.format)
    return f"({column} IS NULL OR {keys(f'to_json({value})')} > {keys(f'to_json({column})')} OR {unfit})"
