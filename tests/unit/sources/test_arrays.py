"""Arrays from buffers are those that pyarrow makes, and pandas stays out of the workers."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sources.arrays import array, fixed_width, joined, variable_width
from sources.columns import ARROW_TYPES

_PAIR = pa.struct([pa.field("name", pa.string()), pa.field("value", pa.string())])
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
_VALUES: dict[str, Any] = {
    "string": _TEXT,
    "binary": st.binary(max_size=5),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "array<struct<name:string,value:string>>": st.lists(st.tuples(_TEXT, _TEXT), max_size=3),
}


@pytest.mark.parametrize("kind", _VALUES)
@given(data=st.data())
def test_an_array_is_the_one_that_pyarrow_makes(kind: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | _VALUES[kind], max_size=20))
    of = ARROW_TYPES[kind]
    found = array(values, of)
    found.validate(full=True)
    expected = values
    if pa.types.is_list(of):
        expected = [v if v is None else [{"name": name, "value": value} for name, value in v] for v in values]
    assert found.type == of
    assert found.equals(pa.array(expected, of))


@given(st.lists(st.none() | st.integers(-(2**62), 2**62), max_size=20))
def test_numbers_are_null_where_they_are_not_valid(values: list[int | None]) -> None:
    of = ARROW_TYPES["timestamp"]
    valid = np.array([value is not None for value in values], bool)
    found = fixed_width(np.array([value or 0 for value in values], np.int64), of, valid)
    found.validate(full=True)
    assert found.equals(pa.array(values, of))


@given(st.lists(st.none() | st.binary(max_size=5), max_size=20))
def test_binaries_follow_each_other(values: list[bytes | None]) -> None:
    assert variable_width(values, pa.binary()).equals(pa.array(values, pa.binary()))
    lengths = np.array([len(value or b"") for value in values], np.int32)
    found = joined(b"".join(value or b"" for value in values), lengths, pa.binary())
    assert found.to_pylist() == [value or b"" for value in values]


def test_text_that_utf_8_cannot_encode_harms_no_row() -> None:
    assert array(["a\ud800"], pa.string()).to_pylist() == ["a?"]


def test_rows_are_made_without_pandas() -> None:
    """It takes half a second and 35 MB of each worker, and comes with ``pa.array`` and ``pa.scalar``."""
    code = """if True:
        import sys
        from bridge import contract
        from bridge.contract import SOURCE_COLUMNS
        from bridge.pulsar.wire.batches import head_of
        from sources.columns import arrow_schema, record_batch
        from sources.entries import Opened, Opener
        opener = Opener()
        properties = {contract.P_USER: '[["a", "b"]]', contract.P_QOS: "1", "own": "x"}
        opener.add(Opened(7, 0, b"x", 1, 2, prefix=head_of("k", properties)))
        opener.add(Opened(7, 1, b"", 1, 0, prefix=head_of("", {}), null=True))
        names = [name for name, _ in SOURCE_COLUMNS]
        batch = record_batch(arrow_schema(names), "persistent://a/b/t", "persistent://a/b/t-partition-1", opener.flush())
        assert batch.num_rows == 2
        print("pandas" in sys.modules)
    """
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "False\n"), ended.stderr
