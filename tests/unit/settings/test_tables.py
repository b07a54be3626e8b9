from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from bridge.settings import Settings
from bridge.settings.presets import declared_decoders, declared_tables, load_preset, preset_names
from bridge.settings.tables import Decoding, TableDeclaration, path_steps

names = st.text(st.characters(codec="utf-8", exclude_characters="'\"[]"), min_size=1)


@given(st.lists(names | st.integers(0, 999), max_size=5))
def test_a_path_is_read_as_it_was_written(steps: list[str | int]) -> None:
    text = "$" + "".join(f"[{s}]" if isinstance(s, int) else f"['{s}']" for s in steps)
    assert path_steps(text) == tuple(steps)


@pytest.mark.parametrize("text", ["$id", "$.", "$.a[", "$.a[x]", "$['a", "$.a..b"])
@pytest.mark.parametrize("name", ["id", "time", "elements"])
def test_what_is_no_path_is_refused(name: str, text: str) -> None:
    with pytest.raises(ValidationError, match="is not a JSON path"):
        Decoding(filter="a", **{name: text})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"filter": "a/#/b"}, "'#' matches all the rest"),
        ({"format": "csv"}, "format csv needs fields"),
        ({"format": "raw"}, "format raw needs fields"),
        ({"format": "protobuf", "message": "m"}, "format protobuf needs either descriptor"),
        ({"format": "python"}, "format python needs function"),
        ({"format": "avro"}, "format avro needs avro_schema"),
        ({"separator": ";"}, "separator is for format csv, and the format is json"),
        ({"format": "csv", "names": ["a", "A"]}, "must be unique and not empty"),
        ({"format": "csv", "fields": "a int", "elements": "$.x"}, "give $ for a row on each line"),
        ({"format": "raw", "fields": "a int", "elements": "$"}, "elements: not for format raw"),
        ({"format": "xml"}, "Input should be 'json', 'csv'"),
        ({"compression": "lz4"}, "Input should be 'gzip' or 'zstd'"),
        ({"columns": {"a": "b"}}, "declare fields"),
        ({"fields": "a int", "columns": {"_a": "a"}}, "must not be empty or begin with _"),
        ({"time_zone": "Europe/Atlantis"}, "unknown time zone"),
        ({"time_unit": "minutes"}, "Input should be 'iso', 's'"),
        ({"fields": "a string", "columns": {"b": "CAST(a AS DOUBLE)"}}, "write try_cast"),
        ({"fields": "a string", "columns": {"b": "a::int"}}, "write try_cast"),
        ({"fields": "a string", "where": "cast(a as int) > 1"}, "write try_cast"),
        ({"format": "none", "fields": "a int"}, "give only a filter"),
        ({"colour": "red"}, "Extra inputs are not permitted"),
    ],
)
def test_a_wrong_declaration_is_refused_in_words(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Decoding(**{"filter": "a", **more})
    assert words in str(caught.value)


def test_an_expression_that_cannot_raise_is_taken() -> None:
    columns = {"a": "try_cast(t AS INT)", "b": "CAST(t AS STRING)", "c": "t::string"}
    assert Decoding(filter="a", fields="t string", columns=columns).columns == columns


@pytest.mark.parametrize(
    ("filters", "words"),
    [
        (("a/+device", "a/+x"), "two decodings have the filter a/+"),
        (("a/#", "a/b"), "never applies, because a/# before it matches"),
    ],
)
def test_a_decoding_that_would_never_be_used_is_an_error(filters: tuple[str, str], words: str) -> None:
    with pytest.raises(ValidationError, match=f"table t: .*{words[:20]}") as caught:
        TableDeclaration.model_validate({"name": "t", "decoding": [{"filter": one} for one in filters]})
    assert words in str(caught.value)
    TableDeclaration.model_validate({"name": "t", "decoding": [{"filter": "a/b"}, {"filter": "a/#"}]})


def test_tables_are_ones_own_then_those_of_the_presets_that_none_replaces() -> None:
    own = {"name": "Zigbee_climate", "decoding": {"filter": "zigbee2mqtt/+device", "fields": "t double"}}
    settings = Settings.model_validate(
        {"ingest": {"presets": ["zigbee2mqtt", "tasmota"]}, "streaming": {"tables": [own]}}
    )
    found = declared_tables(settings)
    assert [table.name for table in found] == ["Zigbee_climate", "tasmota_sensor", "tasmota_state"]
    assert found[0].decoding[0].fields == "t double"
    with pytest.raises(ValidationError, match="two tables have the same name"):
        Settings.model_validate({"streaming": {"tables": [own, own]}})


def test_readings_are_taken_by_ones_own_decodings_then_by_those_of_presets_then_as_they_are() -> None:
    own = [{"filter": "a/b", "format": "none"}, {"filter": "zigbee2mqtt/#", "time": "$.t"}]
    settings = Settings.model_validate(
        {"ingest": {"presets": ["zigbee2mqtt", "tasmota"]}, "streaming": {"decoders": own}}
    )
    assert [one.filter for one in declared_decoders(settings)] == [
        "a/b",
        "zigbee2mqtt/#",
        "tasmota/discovery/#",
        "#",
    ]
    for wrong, words in (
        ([{"filter": "a/+"}, {"filter": "a/+x"}], "two decodings have the filter a/+"),
        ([{"filter": "a", "fields": "t int"}], "declare fields under tables"),
    ):
        with pytest.raises(ValidationError, match=re.escape(words)):
            Settings.model_validate({"streaming": {"decoders": wrong}})


# The tables of Sparkplug depend on earlier messages, so a module declares them.
@pytest.mark.parametrize("name", [name for name in preset_names() if name != "sparkplug"])
def test_each_preset_declares_a_table_with_a_comment(name: str) -> None:
    tables = load_preset(name).tables
    assert tables
    assert all(table.comment for table in tables)
