"""The watermark of a batch, as it stands in Spark's offset log."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streaming.checkpoints import watermark_in

from bridge.errors import ContractError


@given(st.integers(0, 2**62), st.dictionaries(st.text(), st.text()), st.lists(st.text('{}-0:"')))
def test_the_watermark_is_the_one_that_spark_wrote_whatever_the_offsets_are(
    at: int, conf: dict[str, str], offsets: list[str]
) -> None:
    lines = ["v1", json.dumps({"batchWatermarkMs": at, "batchTimestampMs": 5, "conf": conf}), *offsets]
    assert watermark_in("\n".join(lines)) == at


@given(st.text() | st.sampled_from(["v1\n[]", "v1\n{}", 'v1\n{"batchWatermarkMs": Infinity}', "v1\n7"]))
def test_what_names_no_watermark_is_an_error_and_never_a_number(text: str) -> None:
    with pytest.raises(ContractError, match="no watermark"):
        watermark_in(text)
