from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.soak.growth import grows

noise = st.lists(st.floats(-5, 5), min_size=80, max_size=200)


@given(noise)
def test_noise_around_a_level_is_no_growth(values: list[float]) -> None:
    assert not grows([100 + value for value in values], share=0.2, least=0)


@given(noise)
def test_a_slope_is_found_under_noise(values: list[float]) -> None:
    assert grows([100 + 2 * i + value for i, value in enumerate(values)], share=0.1, least=10)


def test_a_rise_in_the_warm_up_alone_is_no_growth() -> None:
    assert not grows([*range(25), *[25] * 75], share=0.0, least=0)


def test_too_few_samples_are_an_error() -> None:
    with pytest.raises(ValueError, match="too few"):
        grows([1.0] * 12, share=0.1, least=0)
