"""Arrow arrays from lists and numpy arrays.

``pa.array`` and ``pa.scalar`` import pandas wherever it is installed: half a second at the first rows of each Python
worker, and 35 MB in each of them. These arrays are made from their buffers (Arrow columnar format, 1.5), which also
takes less time for a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

__all__ = ["array", "fixed_width", "joined", "texts", "variable_width"]


def fixed_width(values: Any, of: Any, valid: Any = None) -> Any:
    """Return an array of the type ``of`` from a numpy array of its physical type; null where ``valid`` is false."""
    return pa.Array.from_buffers(of, len(values), [_bitmap(valid), pa.py_buffer(np.ascontiguousarray(values))])


def variable_width(values: Sequence[bytes | None], of: Any) -> Any:
    """Return an array of binaries, or of strings from their UTF-8."""
    parts: Any = values
    valid = None
    try:
        data = b"".join(parts)
    except TypeError:  # there is a None
        valid, parts = _valid(values), [value or b"" for value in values]
        data = b"".join(parts)
    return joined(data, np.fromiter(map(len, parts), np.int32, len(parts)), of, valid)


def joined(data: bytes, lengths: Any, of: Any, valid: Any = None) -> Any:
    """Return an array of binaries or strings, which follow each other in ``data``, from their lengths (int32)."""
    return pa.Array.from_buffers(
        of, len(lengths), [_bitmap(valid), pa.py_buffer(_offsets(lengths)), pa.py_buffer(data)]
    )


def texts(values: Sequence[str | None]) -> Any:
    """Return an array of strings; what UTF-8 cannot encode becomes ``?``."""
    return variable_width(
        [None if value is None else value.encode("utf-8", "replace") for value in values], pa.string()
    )


def array(values: Sequence[Any], of: Any) -> Any:
    """Return an array of the type ``of``: strings, binaries, booleans, int32, or lists of pairs (``name``, ``value``)."""
    return _MAKERS[of.id](values, of)


def _booleans(values: Sequence[bool | None], of: Any) -> Any:
    data = _bitmap(np.array([bool(value) for value in values], bool))
    return pa.Array.from_buffers(
        of, len(values), [_bitmap(_valid(values)), data or pa.py_buffer(b"\xff" * len(values))]
    )


def _pairs(values: Sequence[Sequence[tuple[str, str]] | None], of: Any) -> Any:
    pairs = [pair for value in values for pair in value or ()]
    children = [texts([pair[0] for pair in pairs]), texts([pair[1] for pair in pairs])]
    items = pa.StructArray.from_arrays(children, fields=list(of.value_type))
    lengths = np.fromiter((len(value or ()) for value in values), np.int32, len(values))
    buffers = [_bitmap(_valid(values)), pa.py_buffer(_offsets(lengths))]
    return pa.Array.from_buffers(of, len(values), buffers, children=[items])


_MAKERS: Final[Mapping[int, Callable[[Any, Any], Any]]] = {
    pa.string().id: lambda values, _: texts(values),
    pa.binary().id: variable_width,
    pa.bool_().id: _booleans,
    pa.int32().id: lambda values, of: fixed_width(
        np.array([value or 0 for value in values], np.int32), of, _valid(values)
    ),
    pa.list_(pa.string()).id: _pairs,
}


def _valid(values: Sequence[Any]) -> Any:
    return np.fromiter((value is not None for value in values), bool, len(values))


def _bitmap(bits: Any) -> Any:
    """Return the bits as Arrow stores them, None if all are set."""
    return None if bits is None or bits.all() else pa.py_buffer(np.packbits(bits, bitorder="little"))


def _offsets(lengths: Any) -> Any:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
