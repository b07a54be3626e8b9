from __future__ import annotations

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import ConfigError
from streaming.decoders.settings import as_recipe, parse_decoders
from streaming.decoders.times import AUTO_BOUNDS

FIRST, LAST = (int(datetime(*day, tzinfo=timezone.utc).timestamp()) for day in ((1973, 3, 4), (5138, 11, 16)))
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@given(st.integers(FIRST, LAST - 1), st.sampled_from(sorted(PER_SECOND)))
def test_a_time_of_any_unit_is_taken_for_its_own_by_its_size(seconds: int, unit: str) -> None:
    number = seconds * PER_SECOND[unit]
    assert next((name for name, bound in AUTO_BOUNDS if number < bound), "ns") == unit


def test_a_decoder_names_a_unit_that_there_is() -> None:
    entry = {"filter": "a", "metric": "m", "id": "$.i", "time": "$.t", "value": "$.v"}
    assert "time_unit" not in as_recipe(parse_decoders([entry], "f"))[0]
    assert as_recipe(parse_decoders([entry | {"time_unit": "ms"}], "f"))[0]["time_unit"] == "ms"
    with pytest.raises(ConfigError, match=r"readings\[0\].time_unit"):
        parse_decoders([entry | {"time_unit": "minutes"}], "f")
