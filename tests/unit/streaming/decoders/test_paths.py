from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import ConfigError
from streaming.decoders.paths import JsonPath
from streaming.decoders.settings import as_recipe, parse_decoders

DECODER = {"filter": "gw/+", "metric": "t", "value": "$.t", "id": "$.id", "time": "$.ts"}
names = st.text(st.characters(codec="utf-8", exclude_characters="'\"[]"), min_size=1)


@given(st.lists(names | st.integers(0, 999), max_size=5), st.booleans())
def test_a_path_is_read_as_it_was_written(steps: list[str | int], of_message: bool) -> None:
    text = "$" + "".join(f"[{s}]" if isinstance(s, int) else f"['{s}']" for s in steps)
    found = JsonPath.parse("$" + text if of_message else text)
    assert (found.steps, found.text, found.of_message) == (tuple(steps), text, of_message)
    assert list(found.fields) == list(steps)[: len(found.fields)]


@pytest.mark.parametrize("text", ["id", "$id", "$.", "$.a[", "$.a[x]", "$['a", "$$$.a", "$.a..b"])
def test_what_spark_would_refuse_in_mid_batch_is_refused_at_load(text: str) -> None:
    with pytest.raises(ValueError, match="is no JSON path"):
        JsonPath.parse(text)


def test_a_place_in_an_array_ends_the_named_fields() -> None:
    assert JsonPath.parse("$.a.b[0].c").fields == ("a", "b")


def test_a_wrong_decoder_is_told_with_its_filter_and_what_to_write() -> None:
    wrong = DECODER | {"elements": "$$.list", "max_elements": 0, "unit": "$unit", "colour": 1}
    with pytest.raises(ConfigError) as caught:
        parse_decoders([wrong], "f")
    for named in (
        "readings[0].elements: '$$.list' begins at the message anyway, give $.list (filter gw/+)",
        "readings[0].max_elements: Input should be greater than or equal to 1 (filter gw/+)",
        "readings[0].unit: '$unit' is no JSON path",
        "readings[0].colour is unknown (filter gw/+)",
    ):
        assert named in str(caught.value)


def test_a_recipe_holds_what_differs_and_reads_back_the_same() -> None:
    found = parse_decoders([DECODER | {"elements": "$.list"}], "f")
    assert as_recipe(found) == [DECODER | {"elements": "$.list"}]
    assert parse_decoders(as_recipe(found), "recipe") == found
