"""Collects in Spark what a decoder does not know of its payloads, and what does not fit its type.

Which fields are known is decided by ``decoders.known``; what becomes of the others, whether they are kept as JSON, are
given columns or stop the query, by ``streaming.evolution``. Nothing that a device sends raises.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from streaming.built_once import built_once
from streaming.decoders.known import Known, Leaf, Tree, known_fields, path_of
from streaming.decoders.settings import Decoder
from streaming.decoders.times import MICROS
from streaming.evolution import ADD_COLUMNS, EXACT, NESTED, RESCUED, UNFIT, UNKNOWN, Kind
from streaming.rule_fields import RuleFields

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["MESSAGE_PARTS", "of_message", "of_reading"]

_MAP: Final = "map<string,variant>"
_NOTES: Final = "array<struct<field:string,kind:string>>"
MESSAGE_PARTS: Final = ("message_rest", "message_notes")
"""What a message has around its readings: columns that go with the first of them."""
_AROUND: Final = "$$"
"""The key in the rescued data of the first reading under which that stands."""
_NAME: Final = 200
"""Characters of a field's name that are told."""
_PLAIN_NUMBER: Final = r"^-?(0|[1-9]\d{0,14})(\.\d{1,15})?$"


_COLUMNS: Final = {"double": "value", "bigint": "sent_at"}
"""What was made of the fields that have a type; ``sent`` is a time in µs, of the years that Python knows."""


class _Left(NamedTuple):
    """What is left of a document: unknown fields of its top, all else, and notes of that."""

    top: Column
    odd: Column
    """Whether there may be more than the top, which is cheap to tell."""
    rest: Column
    notes: Column


def of_message(rows: DataFrame, decoders: Sequence[Decoder], rules: Sequence[RuleFields]) -> DataFrame:
    """Add ``MESSAGE_PARTS``, where any decoder takes the elements of an array."""
    if all(d.elements is None for d in decoders):
        return rows
    return rows.withColumns(_around(tuple(decoders), tuple(rules)))


@built_once
def _around(decoders: Sequence[Decoder], rules: Sequence[RuleFields]) -> dict[str, Column]:
    from pyspark.sql import functions as F

    known = [known_fields(d, rules) for d in decoders]

    def part(pick: Callable[[_Left], Column], kind: str) -> Column:
        return _by_tree(known, "message", lambda tree: pick(_left_in("json", tree, "$$")), kind)

    def told(left: _Left) -> Column:
        of_top = F.transform(F.map_keys(left.top), lambda name: _note(F.concat(F.lit("$$."), name), NESTED))
        return F.concat(of_top, left.notes)

    return {
        "message_rest": part(lambda left: F.map_concat(left.top, left.rest), _MAP),
        "message_notes": part(told, _NOTES),
    }


def of_reading(
    rows: DataFrame,
    decoders: Sequence[Decoder],
    rules: Sequence[RuleFields],
    added: Mapping[str, str],
    mode: str,
) -> DataFrame:
    """Add ``RESCUED`` and ``notes`` (field and kind of what is unknown or does not fit; null for none), and the columns
    that silver has ``added``, by name and type, filled with the fields of these names.

    ``mode`` is the way of decoders that name none.
    """
    from pyspark.sql import functions as F

    found = _in_readings(tuple(decoders), tuple(rules))
    rows = rows.withColumns({name: found[name] for name in ("top", "odd")})
    if added:
        rows = rows.withColumn("added", F.struct(*(_typed(n, t).alias(n) for n, t in added.items())))
        taken = F.array_compact(F.array(*(F.when(_is_taken(name), F.lit(name)) for name in added)))
        rows = rows.withColumn("taken", taken)
        rest = F.map_filter("top", lambda name, value: ~F.array_contains("taken", name))
        rows = rows.withColumn("top", rest).drop("taken")
    around = F.col("message_rest") if "message_rest" in rows.columns else F.lit(None).cast(_MAP)
    told = F.col("message_notes") if "message_rest" in rows.columns else F.lit(None).cast(_NOTES)
    odd = {name: found[name] for name in ("rest", "notes")}
    rows = rows.withColumns({"around": around, "told": told, **odd})
    rows = rows.withColumns(_said(tuple(decoders), tuple(added), mode))
    return rows.drop("top", "odd", "rest", "around", "told", *MESSAGE_PARTS)


@built_once
def _in_readings(decoders: Sequence[Decoder], rules: Sequence[RuleFields]) -> dict[str, Column]:
    from pyspark.sql import functions as F

    known = [known_fields(d, rules) for d in decoders]

    def part(pick: Callable[[_Left], Column], kind: str) -> Column:
        return _by_tree(known, "reading", lambda tree: pick(_left_in("item", tree, "$")), kind)

    return {
        "top": part(lambda left: left.top, _MAP),
        "odd": part(lambda left: left.odd, "boolean"),
        "rest": F.when(F.col("odd"), part(lambda left: left.rest, _MAP)),
        "notes": F.when(F.col("odd"), part(lambda left: left.notes, _NOTES)),
    }


@built_once
def _said(decoders: Sequence[Decoder], added: Sequence[str], mode: str) -> dict[str, Column]:
    from pyspark.sql import functions as F

    noted = [
        F.coalesce(notes, _none())
        for notes in (_of_top(decoders, added, mode), F.col("notes"), F.col("told"))
    ]
    # Most readings have nothing to tell, and building what is empty costs more than looking at them.
    some = (F.size("top") > 0) | (F.size("notes") > 0) | (F.size("told") > 0)
    return {RESCUED: F.when(_some(), _as_json()), "notes": F.when(some, F.concat(*noted))}


def _some() -> Column:
    from pyspark.sql import functions as F

    return (F.size("top") > 0) | (F.size("rest") > 0) | (F.size("around") > 0)


def _as_json() -> Column:
    from pyspark.sql import functions as F

    around = F.size(F.coalesce("around", _empty())) > 0
    top = F.when(around, F.map_filter("top", lambda name, value: name != _AROUND)).otherwise(F.col("top"))
    message = F.when(around, F.create_map(F.lit(_AROUND), F.to_variant_object("around")))
    everything = F.map_concat(
        F.coalesce(top, _empty()), F.coalesce("rest", _empty()), F.coalesce(message, _empty())
    )
    return F.to_json(everything)


def _of_top(decoders: Sequence[Decoder], added: Sequence[str], mode: str) -> Column:
    """Return the notes of the unknown fields at the top, with the kinds of those that may become columns."""
    from pyspark.sql import functions as F

    names = list(added)
    text_forms = [n for n, d in enumerate(decoders) if d.format == "csv"]
    adding = [n for n, d in enumerate(decoders) if (d.schema_evolution or mode) == ADD_COLUMNS]

    def note(entry: Column) -> Column:
        kind = F.when(F.col("decoder").isin(adding), _kind(entry["value"], text_forms)).otherwise(
            F.lit(UNKNOWN)
        )
        if names:
            kind = F.when(entry["key"].isin(names), F.lit(UNFIT)).otherwise(kind)
        return F.struct(F.left(entry["key"], F.lit(_NAME)).alias("field"), kind.alias("kind"))

    found = F.transform(F.map_entries("top"), note)
    return F.when(F.size("top") > 0, found).otherwise(_none())


def _kind(value: Column, text_forms: Sequence[int]) -> Column:
    """Return which kind of value it is; see ``Kind``."""
    from pyspark.sql import functions as F

    schema = F.schema_of_variant(value)
    whole = F.try_variant_get(value, "$", "bigint")
    text = F.when(
        F.col("decoder").isin(list(text_forms))
        & F.try_variant_get(value, "$", "string").rlike(_PLAIN_NUMBER),
        F.lit(Kind.NUMBER.value),
    ).otherwise(F.lit(Kind.TEXT.value))
    return (
        F.when(schema == "VOID", F.lit(Kind.NULL.value))
        .when(schema == "BOOLEAN", F.lit(Kind.BOOLEAN.value))
        .when(
            schema == "BIGINT",
            F.when(whole.between(-EXACT, EXACT), F.lit(Kind.INTEGER.value)).otherwise(F.lit(Kind.LONG.value)),
        )
        .when(schema.rlike(r"^DECIMAL\(\d+,0\)"), F.lit(Kind.HUGE.value))
        .when(schema.startswith("DECIMAL") | schema.isin("DOUBLE", "FLOAT"), F.lit(Kind.NUMBER.value))
        .when(schema.startswith("OBJECT") | schema.startswith("ARRAY"), F.lit(Kind.DEEP.value))
        .otherwise(text)
    )


def _typed(name: str, kind: str) -> Column:
    """Return the field as the column's type has it, null where nothing or something else is there, or it would change:
    Spark itself makes 1 of true, and of 1.5 a whole number.
    """
    from pyspark.sql import functions as F

    value = F.try_element_at("top", F.lit(name))
    text = F.try_variant_get(value, "$", "string")
    found = F.try_variant_get(value, "$", kind)
    truth = F.lower(text).isin("true", "false")
    if kind == "boolean":
        return F.when(truth, found)
    if kind in ("tinyint", "smallint", "int", "bigint"):
        return F.when(text.rlike(r"^\s*[+-]?\d+\s*$"), found)
    if kind in ("double", "float") or kind.startswith("decimal"):
        return F.when(~truth & ~text.rlike(r"^\s*[+-]?\d{16,}\s*$"), found)
    return found


def _is_taken(name: str) -> Column:
    from pyspark.sql import functions as F

    there = F.try_element_at("top", F.lit(name))
    return F.col("added")[name].isNotNull() | F.coalesce(F.is_variant_null(there), F.lit(False))


def _left_in(document: str, tree: Tree, shown: str, names: tuple[str, ...] = ()) -> _Left:
    """Return what is left below a place of a document that the tree does not know."""
    from pyspark.sql import functions as F

    place = path_of(names)
    here = F.try_variant_get(document, place, _MAP)
    known = list(tree)
    top = F.coalesce(F.map_filter(here, lambda name, value: ~name.isin(known)), _empty())
    rest, notes, odd_ones = [_empty()], [_none()], [F.lit(False)]
    for name, below in tree.items():
        path = path_of((*names, name))
        value = F.try_variant_get(document, path, "variant")
        alone = F.create_map(F.lit(name), value)
        if isinstance(below, Leaf):
            if below.type is not None:
                unfit = _unfit(document, below)
                odd_ones.append(unfit)
                rest.append(F.when(unfit, alone).otherwise(_empty()))
                place_of_leaf = F.lit(f"{shown}{below.path[1:]}")
                notes.append(F.when(unfit, F.array(_note(place_of_leaf, UNFIT))).otherwise(_none()))
            continue
        at = f"{shown}.{name}"
        left = _left_in(document, below, at, (*names, name))
        whole = F.map_concat(left.top, left.rest)
        there = value.isNotNull() & ~F.is_variant_null(value)
        odd = there & F.try_variant_get(document, path, _MAP).isNull()
        some = F.size(whole) > 0
        odd_ones.append(there)
        inside = F.create_map(F.lit(name), F.to_variant_object(whole))
        rest.append(F.when(odd, alone).when(some, inside).otherwise(_empty()))
        of_top = F.transform(F.map_keys(left.top), _nested_in(at))
        told = F.concat(of_top, left.notes)
        notes.append(F.when(odd, F.array(_note(F.lit(at), UNFIT))).otherwise(told))
    any_odd = functools.reduce(lambda one, other: one | other, odd_ones)
    return _Left(top, any_odd, F.map_concat(*rest), F.concat(*notes))


def _unfit(document: str, leaf: Leaf) -> Column:
    """Whether there is something at a leaf's path that is not of its type, by the column that was made of it."""
    from pyspark.sql import functions as F

    typed = F.col(("message_" if document == "json" else "") + _COLUMNS[leaf.type or ""])
    missing = typed.isNull() if leaf.type == "double" else ~F.coalesce(typed.between(*MICROS), F.lit(False))
    given = F.try_variant_get(document, leaf.path, "variant")
    return missing & given.isNotNull() & ~F.is_variant_null(given)


def _nested_in(at: str) -> Callable[[Column], Column]:
    from pyspark.sql import functions as F

    return lambda name: _note(F.concat(F.lit(f"{at}."), name), NESTED)


def _note(field: Column, kind: str) -> Column:
    from pyspark.sql import functions as F

    return F.struct(F.left(field, F.lit(_NAME)).alias("field"), F.lit(kind).alias("kind"))


def _by_tree(known: Sequence[Known], part: str, column: Callable[[Tree], Column], kind: str) -> Column:
    """Return a column by decoder; those that know the same fields share it."""
    from pyspark.sql import functions as F

    shared: dict[str, tuple[Tree, list[int]]] = {}
    for n, one in enumerate(known):
        tree = getattr(one, part)
        if tree is not None:
            shared.setdefault(repr(tree), (tree, []))[1].append(n)
    found = F.lit(None).cast(kind)
    for tree, numbers in shared.values():
        found = F.when(F.col("decoder").isin(numbers), column(tree).cast(kind)).otherwise(found)
    return found


def _empty() -> Column:
    from pyspark.sql import functions as F

    return F.create_map().cast(_MAP)


def _none() -> Column:
    from pyspark.sql import functions as F

    return F.array().cast(_NOTES)
